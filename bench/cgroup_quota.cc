#include "bench/cgroup_quota.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "distca/base/cgroup.h"
#include "distca/base/error.h"

namespace distca::bench {
namespace {

constexpr const char* kUnified = "/sys/fs/cgroup";
constexpr const char* kOld = "/sys/fs/cgroup/cpu";  // cgroup v1

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The kernel takes each write as one order.
void write(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (file >= 0) close(file);
  if (!written) throw Error(ErrorKind::kIo, "{} = {}: {}", path, text, strerror(error));
}

bool has_word(const std::string& text, const std::string& word) {
  std::istringstream words(text);
  for (std::string one; words >> one;) {
    if (one == word) return true;
  }
  return false;
}

/// The keeper. Between fork and here nothing but system calls: the caller has threads.
[[noreturn]] void keep(int lifeline, const char* folder) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  setsid();
  dup2(lifeline, 3);
  for (const int stream : {0, 1, 2}) close(stream);  // somebody may wait for their ends
  close_range(4, ~0U, 0);
  char nothing = 0;
  while (read(3, &nothing, 1) < 0 && errno == EINTR) {
  }
  // A process leaves its group a little after its files are closed.
  for (int i = 0; i < 500 && rmdir(folder) != 0 && errno == EBUSY; ++i) {
    const timespec while_it_ends{.tv_sec = 0, .tv_nsec = 10'000'000};
    nanosleep(&while_it_ends, nullptr);
  }
  _exit(0);
}

}  // namespace

CgroupQuota::CgroupQuota() {
  unified_ = has_word(text_of(std::string(kUnified) + "/cgroup.subtree_control"), "cpu");
  const std::string root = unified_ ? kUnified : kOld;
  if (!std::filesystem::exists(root + "/cgroup.procs"))
    throw Error(ErrorKind::kIo, "{} has no cpu controller", kUnified);
  home_ = own_cgroup(root, unified_ ? "" : "cpu");
  folder_ = fmt::format("{}/distca-half-{}", root, getpid());
  if (mkdir(folder_.c_str(), 0755) != 0)
    throw Error(ErrorKind::kIo, "{}: {}", folder_, strerror(errno));
  try {
    start_keeper();
    if (!unified_) write(folder_ + "/cpu.cfs_period_us", std::to_string(kPeriodUs));
    run(false);
    write(folder_ + "/cgroup.procs", std::to_string(getpid()));
  } catch (const Error&) {
    remove();
    throw;
  }
}

CgroupQuota::~CgroupQuota() {
  try {
    write(home_ + "/cgroup.procs", std::to_string(getpid()));
  } catch (const Error&) {
    // The keeper removes the folder when the process ends.
    close(lifeline_);
    return;
  }
  remove();
}

void CgroupQuota::start_keeper() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(ErrorKind::kIo, "a pipe to a cgroup's keeper: {}", strerror(errno));
  keeper_ = fork();
  if (keeper_ == 0) {
    close(ends[1]);
    keep(ends[0], folder_.c_str());
  }
  const int error = errno;
  close(ends[0]);
  lifeline_ = ends[1];
  if (keeper_ < 0)
    throw Error(ErrorKind::kIo, "a process that keeps a cgroup: {}", strerror(error));
}

void CgroupQuota::remove() {
  if (lifeline_ >= 0) close(lifeline_);
  if (keeper_ > 0) {
    waitpid(keeper_, nullptr, 0);
  } else {
    rmdir(folder_.c_str());
  }
}

void CgroupQuota::run(bool on) {
  if (unified_) {
    write(folder_ + "/cpu.max",
          on ? fmt::format("{} {}", kQuotaUs, kPeriodUs) : fmt::format("max {}", kPeriodUs));
  } else {
    write(folder_ + "/cpu.cfs_quota_us", on ? std::to_string(kQuotaUs) : "-1");
  }
}

double CgroupQuota::taken_seconds() const {
  std::istringstream lines(text_of(folder_ + "/cpu.stat"));
  const std::string wanted = unified_ ? "throttled_usec" : "throttled_time";
  std::string name;
  for (int64_t value = 0; lines >> name >> value;) {
    if (name == wanted) return static_cast<double>(value) * (unified_ ? 1e-6 : 1e-9);
  }
  return 0;
}

}  // namespace distca::bench
