#include "distca/comm/health/board_keys.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

namespace distca {

std::string deaths_key(const std::string& prefix) { return prefix + "deaths"; }

std::string verdict_key(const std::string& prefix) { return prefix + "verdict"; }

std::string board_key(const std::string& prefix, int rank) {
  return fmt::format("{}board/{}", prefix, rank);
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
