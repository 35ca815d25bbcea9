#pragma once
// What /proc says of this machine; where there is none, "unknown" and no flags. Any thread.

#include <string>
#include <string_view>

namespace distca {

/// The CPU's model: "AMD EPYC 9654 96-Core Processor".
std::string cpu_name();

/// A flag of the CPU as a whole word: "avx512_bf16", "amx_bf16", ...
bool cpu_has(std::string_view flag);

/// Which Linux namespace of a kind ("net", "time") this process is in: two processes, of whatever
/// machines, have the same text if they are in the same one. Empty where that is not known.
std::string namespace_id(const std::string& kind);

/// Which clock base/clock.h reads: processes where it is the same read the same one, on one machine
/// or in its containers. Empty where that is not known.
std::string steady_clock_id();

}  // namespace distca
