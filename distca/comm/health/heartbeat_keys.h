#pragma once
// What others than the ranks read and write of heartbeats (heartbeat.h): the launcher and the store
// process. Pure.

#include <string>

namespace distca {

std::string deaths_key(const std::string& prefix);
std::string diagnosis_key(const std::string& prefix);
std::string heartbeat_key(const std::string& prefix, int rank);
/// One line of the deaths key. `how`: "was killed by signal 9 (SIGKILL)".
std::string death_line(int rank, const std::string& how);
/// "exited with code 3" or "was killed by signal 9 (SIGKILL)"; `status` as waitpid gives it.
std::string describe_exit(int status);

}  // namespace distca
