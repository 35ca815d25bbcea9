#include "bench/cgroup_quota.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "distca/base/cgroup.h"
#include "distca/base/error.h"
#include "distca/base/file.h"

namespace distca::bench {
namespace {

constexpr const char* kUnified = "/sys/fs/cgroup";
constexpr const char* kOld = "/sys/fs/cgroup/cpu";  // cgroup v1
constexpr const char* kPrefix = "distca-half-";     // then the process
constexpr int kPeriodUs = 10'000;
constexpr int kQuotaUs = 5'000;

/// The kernel takes each write as one order.
void order(const std::string& path, const std::string& text) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw Error(ErrorKind::kIo, "{} = {}: {}", path, text, strerror(errno));
}

std::vector<std::string> words_of_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istream_iterator<std::string>(file), {}};
}

}  // namespace

CgroupQuota::CgroupQuota() {
  unified_ =
      std::ranges::count(words_of_file(std::string(kUnified) + "/cgroup.subtree_control"), "cpu");
  namespace fs = std::filesystem;
  const fs::path root = unified_ ? kUnified : kOld;
  std::error_code ignored;
  for (const auto& group : fs::directory_iterator(root, ignored)) {
    // Refused where a process lives in it.
    if (group.path().filename().string().starts_with(kPrefix)) fs::remove(group.path(), ignored);
  }
  home_ = own_cgroup(root, unified_ ? "" : "cpu");
  folder_ = root / fmt::format("{}{}", kPrefix, getpid());
  std::error_code error;
  if (!fs::create_directory(folder_, error))
    throw Error(ErrorKind::kIo, "no control group {}: {}", folder_, error.message());
  try {
    if (!unified_) order(folder_ + "/cpu.cfs_period_us", std::to_string(kPeriodUs));
    run(false);
    order(folder_ + "/cgroup.procs", std::to_string(getpid()));
  } catch (const Error&) {
    rmdir(folder_.c_str());
    throw;
  }
}

CgroupQuota::~CgroupQuota() {
  try {
    order(home_ + "/cgroup.procs", std::to_string(getpid()));
  } catch (const Error&) {
    return;  // the next one removes the group
  }
  rmdir(folder_.c_str());
}

void CgroupQuota::run(bool on) {
  if (unified_) {
    order(folder_ + "/cpu.max",
          fmt::format("{} {}", on ? std::to_string(kQuotaUs) : "max", kPeriodUs));
  } else {
    order(folder_ + "/cpu.cfs_quota_us", on ? std::to_string(kQuotaUs) : "-1");
  }
}

double CgroupQuota::taken_seconds() const {
  const std::vector<std::string> words = words_of_file(folder_ + "/cpu.stat");
  const auto name = std::ranges::find(words, unified_ ? "throttled_usec" : "throttled_time");
  return name == words.end() ? 0 : std::stod(name[1]) * (unified_ ? 1e-6 : 1e-9);
}

}  // namespace distca::bench
