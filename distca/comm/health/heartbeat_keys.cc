#include "distca/comm/health/heartbeat_keys.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

namespace distca {

std::string deaths_key(const std::string& prefix) { return prefix + "deaths"; }

std::string diagnosis_key(const std::string& prefix) { return prefix + "diagnosis"; }

std::string heartbeat_key(const std::string& prefix, int rank) {
  return fmt::format("{}heartbeat/{}", prefix, rank);
}

std::string death_line(int rank, const std::string& how) {
  return fmt::format("{} {}\n", rank, how);
}

std::string describe_exit(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exited with code {}", WEXITSTATUS(status));
  const char* name = sigabbrev_np(WTERMSIG(status));
  return fmt::format("was killed by signal {} (SIG{})", WTERMSIG(status), name ? name : "?");
}

}  // namespace distca
