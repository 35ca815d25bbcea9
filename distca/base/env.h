#pragma once
// The only place that reads the environment. The variables are those of launchers and libraries
// (RANK, MASTER_ADDR, GLOO_SOCKET_IFNAME, ...). DistCA's own are DISTCA_KERNEL_ISA, for tests and
// measurements (kernels/cpu/isa.h), and DISTCA_NCCL_LIBRARY and DISTCA_NCCL_SAME_DEVICE
// (docs/comm.md) and kStartedAt, in addition to those by which its launcher numbers ranks.
//
// Thread rule: any thread may call it, but nobody may change the environment at the same time.

#include <optional>
#include <string>

namespace distca {

/// When the run was launched, in Unix seconds. `distca` sets it where nobody has, so that its ranks
/// and their restarts know it (train.exit_duration_in_mins).
constexpr const char* kStartedAt = "DISTCA_STARTED_AT";

/// The value of an environment variable; nothing if it is unset or empty.
std::optional<std::string> env_string(const char* name);

}  // namespace distca
