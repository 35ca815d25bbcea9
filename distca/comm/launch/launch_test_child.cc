// A small program for launch_test.cc:
//   launch PORT WORKERS MODE [RANK]   the launcher; its ranks run the rest
//   MODE [RANK]                       a rank: exchanges around a ring until, in step 3 or after the
//                                     last, RANK does what MODE says
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/comm/gloo_group.h"
#include "distca/comm/launch/launch.h"
#include "distca/comm/launch/store_process.h"

namespace {

using distca::Error;
using distca::ErrorKind;

constexpr distca::CommOptions kOptions{.timeout_s = 2, .grace_s = 2, .startup_timeout_s = 30};

/// More than any pipe holds.
void chatter() {
  for (int i = 0; i < 20'000; ++i) {
    for (std::FILE* stream : {stdout, stderr}) std::fprintf(stream, "%d bottles of beer\n", i);
  }
}

void misbehave(const std::string& mode) {
  if (mode == "kill") raise(SIGKILL);
  if (mode == "chatter") chatter();
  if (mode == "stop") raise(SIGSTOP);
  if (mode == "throw") throw Error(ErrorKind::kData, "token 300 is beyond the vocabulary of 256");
  if (mode == "exit") _exit(7);
  if (mode == "stubborn") std::signal(SIGTERM, SIG_IGN);
  if (mode == "hang" || mode == "stubborn") std::this_thread::sleep_for(std::chrono::hours(1));
}

/// After the last step: the others end.
void save(const std::string& mode) {
  if (mode == "save") std::this_thread::sleep_for(std::chrono::seconds(7));
  if (mode == "freeze") raise(SIGSTOP);
}

int run_rank(const std::string& mode, int who) {
  if (mode == "refuse") throw Error(ErrorKind::kConfig, "unknown key model.layer");
  const auto rendezvous =
      distca::find_rendezvous([](const char* name) { return distca::env_string(name); });
  if (!rendezvous) throw Error(ErrorKind::kUsage, "no rank");
  const auto store = distca::start_store_process(*rendezvous, kOptions.grace_s);
  auto group = distca::make_gloo_group(*rendezvous, kOptions);
  const bool is_who = group->rank() == who;
  std::printf("pid %d\n", getpid());
  std::fflush(stdout);
  std::fprintf(stderr, "a word on stderr\n");
  for (int step = 0; step < 6; ++step) {
    group->set_step(step);
    distca::barrier(*group, "forward layer 2 dispatch");
    if (step == 3 && is_who) {
      // Two heartbeats, so that one shows what we are at.
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      misbehave(mode);
    }
    if (mode == "wait") std::this_thread::sleep_for(std::chrono::seconds(5));
  }
  std::printf("done\n");
  if (is_who) save(mode);
  group.reset();
  // As a destructor that hangs.
  if (is_who && mode == "linger") std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    if (arguments.at(1) != "launch") {
      return run_rank(arguments[1], argc > 2 ? std::stoi(arguments[2]) : -1);
    }
    distca::LaunchOptions options{.workers = std::stoi(arguments.at(3)),
                                  .command = {arguments[0]},
                                  .port = std::stoi(arguments.at(2)),
                                  .timeout_s = kOptions.timeout_s,
                                  .grace_s = kOptions.grace_s};
    options.command.insert(options.command.end(), arguments.begin() + 4, arguments.end());
    const std::clock_t before = std::clock();
    const int exit_code = distca::launch_local(options);
    if (arguments.at(4) == "stubborn") {
      std::printf("the launcher computed %.3f s\n",
                  static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC);
    }
    return exit_code;
  } catch (const Error& error) {
    std::fprintf(stderr, "distca: error: %s\n", error.what());
    return error.exit_code();
  }
}
