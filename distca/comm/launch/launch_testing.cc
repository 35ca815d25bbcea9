#include "distca/comm/launch/launch_testing.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <regex>

#include "distca/base/clock.h"
#include "distca/comm/launch/local_store.h"

namespace distca {

Process::Process(std::vector<std::string> arguments,
                 const std::map<std::string, std::string>& extra) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  arguments.insert(arguments.begin(), DISTCA_LAUNCH_TEST_CHILD);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    for (const auto& [name, value] : extra) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  from_ = ends[0];
}

Process::Process(const Launch& how) : Process(how.arguments(), how.environment) {}

Process::~Process() {
  if (!ended_) kill(pid_, SIGKILL);
  close(from_);
}

void Process::read_until(const std::string& text, int times) {
  while (count(output, text) < times && read_some()) {
  }
}

int Process::wait() {
  while (read_some()) {
  }
  return wait_without_reading();
}

int Process::wait_without_reading() {
  int status = 0;
  waitpid(pid_, &status, 0);
  ended_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool Process::read_some() {
  pollfd polled{.fd = from_, .events = POLLIN, .revents = 0};
  if (poll(&polled, 1, static_cast<int>(kLimit * 1e3)) != 1) return false;
  char buffer[4096];
  const ssize_t got = read(from_, buffer, sizeof(buffer));
  if (got > 0) output.append(buffer, static_cast<size_t>(got));
  return got > 0;
}

std::set<pid_t> pids_in(const std::string& output) {
  std::set<pid_t> pids;
  static const std::regex pattern("pid ([0-9]+)");
  for (std::sregex_iterator match(output.begin(), output.end(), pattern), end; match != end;
       ++match) {
    pids.insert(std::stoi((*match)[1]));
  }
  return pids;
}

bool runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  return file >> number >> name >> state && state != "Z" && state != "X";
}

std::vector<std::string> Launch::arguments() const {
  std::vector<std::string> words = {"launch", std::to_string(port), std::to_string(workers),
                                    fmt::format("{}", stop_grace_s), std::to_string(max_restarts)};
  words.insert(words.end(), mode.begin(), mode.end());
  return words;
}

Outcome launch(const Launch& how) {
  const Stopwatch watch;
  Process process(how);
  Outcome outcome{
      .exit_code = process.wait(), .seconds = watch.seconds(), .output = process.output};
  for (pid_t pid : pids_in(outcome.output)) EXPECT_FALSE(runs(pid)) << outcome.output;
  return outcome;
}

int count(const std::string& output, const std::string& text) {
  int found = 0;
  for (size_t at = 0; (at = output.find(text, at)) != std::string::npos; ++at) ++found;
  return found;
}

int count_errors(const std::string& output) { return count(output, "distca: error"); }

uint16_t free_port() { return ListenSocket(Interface::kAll, 0).port(); }

}  // namespace distca
