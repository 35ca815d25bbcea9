#pragma once
// What the control groups of this process allow it (cgroup v2 and v1). Any thread.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace distca {

/// Where the system tells of control groups.
struct CgroupPlaces {
  std::filesystem::path root = "/sys/fs/cgroup";
  std::filesystem::path own = "/proc/self/cgroup";
};

/// The folder of this process's group of `controller` ("cpu", "memory"; "": of v2) below `root`,
/// where that hierarchy is mounted; `root` itself where it is not found there: in a container.
std::filesystem::path own_cgroup(const std::filesystem::path& root, const std::string& controller,
                                 const CgroupPlaces& places = {});

/// The least number of bytes that the process's group, or one above it, may use; none: no limit.
std::optional<int64_t> cgroup_memory_limit(const CgroupPlaces& places = {});

}  // namespace distca
