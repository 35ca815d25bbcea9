#pragma once
// Facts about this machine from /proc. Without /proc, the name is "unknown". Any
// thread may call these functions.

#include <string>

namespace distca {

/// The model of the CPU, for example "AMD EPYC 9654 96-Core Processor".
std::string cpu_name();
/// The model of the first NVIDIA GPU as its driver says it, or "unknown CUDA device".
std::string gpu_name();

/// Identifies the Linux namespace of a kind ("net", "time") that this process is in. Two processes
/// on any machines get the same text exactly if they are in the same namespace. Empty if it is
/// unknown.
std::string namespace_id(const std::string& kind);

/// Identifies the clock that base/clock.h reads. Two processes that get the same text read the same
/// clock; they may be in different containers of one machine. Empty if it is unknown.
std::string steady_clock_id();

}  // namespace distca
