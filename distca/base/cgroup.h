#pragma once
// Reads what the Linux control groups (cgroup v2 and v1) allow this process. Any thread may call
// these functions.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace distca {

/// Where the system publishes control groups. Tests give folders of their own.
struct CgroupPlaces {
  std::filesystem::path root = "/sys/fs/cgroup";    // where the hierarchies are mounted
  std::filesystem::path own = "/proc/self/cgroup";  // lists this process's groups
};

/// Returns the folder, below `root`, of the group that this process is in for `controller` ("cpu"
/// or "memory" for v1, "" for v2). `root` is where the hierarchy is mounted. If the folder is not
/// found there, which is the case in a container, returns `root` itself.
std::filesystem::path own_cgroup(const std::filesystem::path& root, const std::string& controller,
                                 const CgroupPlaces& places = {});

/// Returns the smallest memory limit, in bytes, of this process's group and the groups above it.
/// Returns nothing if there is no limit.
std::optional<int64_t> cgroup_memory_limit(const CgroupPlaces& places = {});

}  // namespace distca
