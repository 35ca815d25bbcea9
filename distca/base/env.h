#pragma once
// The only place that reads the environment: the variables of launchers and libraries (RANK,
// MASTER_ADDR, GLOO_SOCKET_IFNAME, ...). Of DistCA's own only DISTCA_KERNEL_ISA is there, for tests
// and measurements (kernels/cpu/isa.h). Thread rule: reads only; nobody may write the environment
// at the same time.

#include <optional>
#include <string>

namespace distca {

/// Unset and empty are the same.
std::optional<std::string> env_string(const char* name);

}  // namespace distca
