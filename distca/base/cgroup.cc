#include "distca/base/cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <system_error>

namespace distca {
namespace {

namespace fs = std::filesystem;

/// The limit that `file` of a group or of one above it, up to `root`, says; "max", as all that is
/// no number, is none.
void lower(const fs::path& root, fs::path folder, const char* file, std::optional<int64_t>* limit) {
  while (true) {
    std::ifstream stream(folder / file);
    uint64_t bytes = 0;
    // v1 says "no limit" as the largest multiple of a page.
    if (stream >> bytes && bytes < uint64_t{1} << 62) {
      *limit = std::min(limit->value_or(INT64_MAX), static_cast<int64_t>(bytes));
    }
    if (folder == root || !folder.has_relative_path()) return;
    folder = folder.parent_path();
  }
}

}  // namespace

fs::path own_cgroup(const fs::path& root, const std::string& controller,
                    const CgroupPlaces& places) {
  // Lines "NUMBER:CONTROLLERS:/PATH"; v2 names no controllers.
  std::ifstream lines(places.own);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    // ":" and ",cpu,": a name is not to be found within another one.
    const std::string names = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (names.find(fmt::format(",{},", controller)) == std::string::npos) continue;
    const fs::path below = fs::path(line.substr(second + 1)).relative_path();
    const fs::path folder = below.empty() ? root : root / below;
    std::error_code absent;
    return fs::exists(folder / "cgroup.procs", absent) ? folder : root;
  }
  return root;
}

std::optional<int64_t> cgroup_memory_limit(const CgroupPlaces& places) {
  std::optional<int64_t> limit;
  lower(places.root, own_cgroup(places.root, "", places), "memory.max", &limit);
  const fs::path v1 = places.root / "memory";
  lower(v1, own_cgroup(v1, "memory", places), "memory.limit_in_bytes", &limit);
  return limit;
}

}  // namespace distca
