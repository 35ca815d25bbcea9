// A small program for launch_test.cc, stop_test.cc and restart_test.cc:
//   launch PORT WORKERS STOP_GRACE RESTARTS MODE [RANK]   the launcher; its ranks run the rest
//   MODE [RANK]    a rank: exchanges around a ring until, in step 3 or after the last, RANK does
//                  what MODE says
//   loading RANK   ranks that load for long, of which RANK is killed, the first time
//   stopped-MODE   a rank that waits for a signal, goes on after it, and then does what MODE says
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/stop_signals.h"
#include "distca/comm/collectives.h"
#include "distca/comm/gloo_group.h"
#include "distca/comm/health/beat.h"
#include "distca/comm/launch/launch.h"
#include "distca/comm/launch/store_keys.h"
#include "distca/comm/launch/store_process.h"

namespace {

using distca::Error;
using distca::ErrorKind;

constexpr distca::CommOptions kOptions{.timeout_s = 2, .grace_s = 2, .startup_timeout_s = 300};

/// Ranks that are healthy are never late, unless the test waits until they are.
distca::CommOptions options_of_ranks() {
  distca::CommOptions options = kOptions;
  options.timeout_s = std::stod(distca::env_string("LAUNCH_TEST_TIMEOUT_S").value_or("300"));
  return options;
}

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void say_pid() {
  std::printf("pid %d\n", getpid());
  std::fflush(stdout);
}

/// A variable that our launcher sets, or "none" for a rank of another launcher.
std::string variable(const char* name) { return distca::env_string(name).value_or("none"); }

/// More than any pipe holds.
void chatter() {
  for (int i = 0; i < 20'000; ++i) {
    for (std::FILE* stream : {stdout, stderr}) std::fprintf(stream, "%d bottles of beer\n", i);
  }
}

void misbehave(const std::string& mode) {
  if (mode == "kill") raise(SIGKILL);
  if (mode == "kill-once" && variable("DISTCA_RESTART") == "0") raise(SIGKILL);
  if (mode == "chatter") chatter();
  if (mode == "stop") raise(SIGSTOP);
  if (mode == "throw") throw Error(ErrorKind::kData, "token 300 is beyond the vocabulary of 256");
  if (mode == "exit") _exit(7);
  if (mode == "stubborn") std::signal(SIGTERM, SIG_IGN);
  if (mode == "hang" || mode == "stubborn") sleep(3600);
}

/// After the last step: the others end.
void save(const std::string& mode) {
  if (mode == "save") sleep(7);
  if (mode == "freeze") raise(SIGSTOP);
}

/// Rank 0 saves, or tries to; the others end at once, or not at all.
int end_after(int signal, const std::string& mode) {
  const bool saves = variable("DISTCA_RANK") == "0";
  const bool fails = mode == "stopped-fail";
  if (mode == "stopped-hang" || (fails && !saves)) sleep(3600);
  if (!saves) return 0;
  if (fails) throw Error(ErrorKind::kIo, "checkpoint: No space left on device");
  sleep(mode == "stopped-long" ? 6 : .5);
  const std::string name = distca::signal_name(signal);
  std::fprintf(stderr, "distca: stopped by %s; saved\n", name.c_str());
  return signal == SIGINT ? distca::kStoppedExitCode : 0;
}

int run_until_stopped(const std::string& mode) {
  std::atomic<int> asked = 0;
  const distca::StopSignals stop(
      [&](int signal) {
        asked = signal;
        return true;
      },
      [](const std::string& signal) { return "stopped by " + signal + "; not saved"; });
  say_pid();
  while (asked == 0) sleep(.01);
  return end_after(asked, mode);
}

/// Until the heartbeat of this rank shows the step.
void wait_until_shown(const distca::Rendezvous& rendezvous, int step) {
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.waitWorkers = false;
  c10d::TCPStore store(rendezvous.address, options);
  const std::string key = distca::heartbeat_key(rendezvous.prefix, rendezvous.rank);
  const auto shown = [&] {
    const std::vector<uint8_t> bytes = store.get(key);
    return distca::decode_beat({bytes.begin(), bytes.end()}).news.last;
  };
  while (shown().step != step) sleep(.05);
}

/// Behaves as a start-up does: a signal ends the process at once.
void load(int who) {
  const distca::StopSignals stop(
      [](int) { return false; },
      [](const std::string& signal) { return "stopped by " + signal + " before the first step"; });
  if (variable("DISTCA_RANK") == std::to_string(who)) raise(SIGKILL);
  sleep(3600);
}

int run_rank(const std::string& mode, int who) {
  if (mode == "loading" && variable("DISTCA_RESTART") == "0") load(who);
  if (mode.starts_with("stopped-")) return run_until_stopped(mode);
  if (mode == "diverge") throw Error(ErrorKind::kTraining, "step 7: the loss is not finite");
  if (mode == "refuse") throw Error(ErrorKind::kConfig, "unknown key model.layer");
  const auto rendezvous =
      distca::find_rendezvous([](const char* name) { return distca::env_string(name); });
  if (!rendezvous) throw Error(ErrorKind::kUsage, "no rank");
  const auto store = distca::start_store_process(*rendezvous, kOptions.grace_s);
  auto group = distca::make_gloo_group(*rendezvous, options_of_ranks());
  const bool is_who = group->rank() == who;
  // In this mode, one rank is further in its start-up than the others.
  std::optional<distca::StopSignals> stop;
  if (mode == "half-ready" && is_who) {
    stop.emplace([](int) { return true; }, [](const std::string&) { return "unsaid"; });
  }
  std::printf("attempt %s of %s\n", variable("DISTCA_RESTART").c_str(),
              variable("DISTCA_RUN_ID").c_str());
  say_pid();
  std::fprintf(stderr, "a word on stderr\n");
  for (int step = 0; step < (mode == "half-ready" ? 10'000 : 6); ++step) {
    group->set_step(step);
    distca::barrier(*group, "forward layer 2 dispatch");
    if (step == 3 && is_who) {
      wait_until_shown(*rendezvous, step);
      misbehave(mode);
    }
    if (mode == "wait") sleep(5);
    if (mode == "half-ready") sleep(.1);
  }
  std::printf("done\n");
  if (is_who) save(mode);
  group.reset();
  // This stands for a destructor that hangs.
  if (is_who && mode == "linger") sleep(3600);
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
                                  .grace_s = kOptions.grace_s,
                                  .stop_grace_s = std::stod(arguments.at(4)),
                                  .max_restarts = std::stoi(arguments.at(5))};
    options.command.insert(options.command.end(), arguments.begin() + 6, arguments.end());
    const std::clock_t before = std::clock();
    const int exit_code = distca::launch_local(options);
    if (arguments.at(6) == "stubborn") {
      std::printf("the launcher computed %.3f s\n",
                  static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC);
    }
    return exit_code;
  } catch (const Error& error) {
    std::fprintf(stderr, "distca: error: %s\n", error.what());
    return error.exit_code();
  }
}
