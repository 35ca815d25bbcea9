#include "distca/comm/launch/local_run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/stop_signals.h"
#include "distca/comm/health/beat.h"
#include "distca/comm/launch/launch_output.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/launch/run_end.h"
#include "distca/comm/launch/store_keys.h"

namespace distca {
namespace {

constexpr const char* kKeyPrefix = "distca/";  // the store's keys begin with it (rendezvous.cc)
constexpr double kKillDelay = 2;               // seconds between SIGTERM and SIGKILL
constexpr double kLook = 0.5;  // seconds between two looks at a rank that still saves

struct Child {
  int rank = 0;
  pid_t pid = -1;
  RankStream out = {}, err = {};
  std::optional<int> status = {};  // once it has ended
  bool ended_by_us = false;
};

class LocalRun {
 public:
  LocalRun(const LaunchOptions& options, const Attempt& attempt)
      : options_(options),
        attempt_(attempt),
        socket_(Interface::kLoopback, options.port),
        store_(socket_),
        end_{.late_after_s = options.timeout_s + options.grace_s} {}
  ~LocalRun();

  Ended run();

 private:
  void make_environment(int rank);
  void set(std::string_view name, std::string_view value);
  void spawn(int rank);
  [[noreturn]] void become_rank(const Child& child, pid_t launcher);
  void wait_for_news();
  int until_deadline_ms() const;
  void read_signals();
  void interrupt(const signalfd_siginfo& signal);
  void note_end(Child& child, int status);
  void end_by_force();
  void end_the_late();
  bool rank_0_is_late(double now);
  void signal_running(int signal, bool ends);

  const LaunchOptions& options_;
  const Attempt& attempt_;
  ListenSocket socket_;
  LocalStore store_;  // its threads inherit our mask: signals come to us alone
  std::vector<Child> children_;
  RunEnd end_;                             // filled in in the course of the run
  bool all_started_ = false;               // so that the terminal's Ctrl-C reaches all of them
  double interrupted_at_ = 0;              // steady seconds
  double terminate_at_ = 0, kill_at_ = 0;  // Steady seconds. 0 means not yet decided.
  bool killed_ = false;
  // Once a rank has ended well, the others are done too, but for what rank 0 still saves.
  double first_done_s_ = 0;       // when that was
  std::string rank_0_beat_ = {};  // its last heartbeat
  double rank_0_moved_s_ = 0;     // when that changed
  bool said_waiting_ = false;
  Console out_{STDOUT_FILENO, {.shared = true}};  // rank 0 writes there too
  Console& err_ = standard_error();
  // Made before fork: the child may not allocate.
  std::vector<std::string> environment_;
  std::vector<char*> argv_, envp_;
  std::string cannot_run_;
};

LocalRun::~LocalRun() {
  // Only an exception leaves children here.
  for (Child& child : children_) {
    if (child.status) continue;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
}

Ended LocalRun::run() {
  store_.belong_to("distca", kKeyPrefix, options_.workers);
  cannot_run_ = fmt::format("{}error: cannot run {}\n", kExitMessage, options_.command.at(0));
  for (const std::string& argument : options_.command) {
    argv_.push_back(const_cast<char*>(argument.c_str()));
  }
  argv_.push_back(nullptr);
  children_.reserve(options_.workers);
  for (int rank = 0; rank < options_.workers; ++rank) spawn(rank);
  read_signals();
  all_started_ = true;
  while (std::ranges::any_of(children_, [](const Child& child) { return !child.status; })) {
    wait_for_news();
    end_the_late();
    end_by_force();
  }
  end_.diagnosis = store_.read(diagnosis_key(kKeyPrefix));
  end_.rank_0_finished =
      !rank_0_beat_.empty() && decode_beat(rank_0_beat_).news.state == RankState::kFinished;
  for (const Child& child : children_) {
    end_.ranks.push_back({.status = *child.status,
                          .exit_message = child.err.exit_message(),
                          .ended_by_us = child.ended_by_us});
  }
  out_.finish(kConsolePatience);
  const ExitMessage words = exit_message_of(end_);
  const std::string beside = message_beside(words.line, end_);
  if (!beside.empty()) err_.important(beside);
  return {words, end_.signal != 0};
}

void LocalRun::make_environment(int rank) {
  environment_.clear();
  for (char** entry = environ; *entry != nullptr; ++entry) environment_.emplace_back(*entry);
  set("DISTCA_RANK", std::to_string(rank));
  set("DISTCA_SIZE", std::to_string(options_.workers));
  set("DISTCA_MASTER_ADDR", loopback_address());
  set("DISTCA_MASTER_PORT", std::to_string(socket_.port()));
  set("DISTCA_RUN_ID", attempt_.run_id);
  set("DISTCA_RESTART", std::to_string(attempt_.restart));
  if (!env_string("RES_OPTIONS")) {
    // c10d asks for the name of every address it connects to, and a name server that does not
    // answer must not cost each rank ten seconds. Local ranks look up nothing else.
    set("RES_OPTIONS", "timeout:1 attempts:1");
  }
  if (!env_string("OMP_NUM_THREADS")) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    set("OMP_NUM_THREADS", std::to_string(std::max(1, cores / options_.workers)));
  }
  envp_.clear();
  for (std::string& entry : environment_) envp_.push_back(entry.data());
  envp_.push_back(nullptr);
}

/// In place of what was inherited: of two entries getenv takes the first.
void LocalRun::set(std::string_view name, std::string_view value) {
  const std::string start = fmt::format("{}=", name);
  std::erase_if(environment_, [&](const std::string& entry) { return entry.starts_with(start); });
  environment_.push_back(fmt::format("{}{}", start, value));
}

void LocalRun::spawn(int rank) {
  make_environment(rank);
  Child child{.rank = rank};
  if (rank != 0) child.out = RankStream(rank, out_, /*hold_exit_message=*/false);
  child.err = RankStream(rank, err_, /*hold_exit_message=*/true);
  const pid_t launcher = getpid();
  child.pid = fork();
  if (child.pid == 0) become_rank(child, launcher);
  child.out.close_rank_end();
  child.err.close_rank_end();
  DISTCA_THROW_IF(child.pid < 0, ErrorKind::kIo, "cannot start rank {}: {}", rank,
                  std::strerror(errno));
  children_.push_back(std::move(child));
}

/// After fork: only calls that are safe in the child of a program with threads.
void LocalRun::become_rank(const Child& child, pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  if (child.out.rank_end() >= 0) dup2(child.out.rank_end(), STDOUT_FILENO);
  dup2(child.err.rank_end(), STDERR_FILENO);
  pthread_sigmask(SIG_SETMASK, &attempt_.rank_mask, nullptr);
  execvpe(argv_[0], argv_.data(), envp_.data());
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, cannot_run_.data(), cannot_run_.size());
  _exit(2);
}

void LocalRun::wait_for_news() {
  std::vector<pollfd> polled = {{.fd = attempt_.signals, .events = POLLIN, .revents = 0}};
  std::vector<RankStream*> readers;
  for (Child& child : children_) {
    for (RankStream* stream : {&child.out, &child.err}) {
      if (stream->from() < 0) continue;
      polled.push_back({.fd = stream->from(), .events = POLLIN, .revents = 0});
      readers.push_back(stream);
    }
  }
  DISTCA_THROW_IF(poll(polled.data(), polled.size(), until_deadline_ms()) < 0 && errno != EINTR,
                  ErrorKind::kIo, "poll: {}", std::strerror(errno));
  for (size_t i = 0; i < readers.size(); ++i) {
    if (polled[i + 1].revents != 0) readers[i]->pass_on();
  }
  if (polled[0].revents != 0) read_signals();
}

/// The milliseconds that poll may wait. -1 means for ever.
int LocalRun::until_deadline_ms() const {
  if (killed_) return -1;
  // Only the deadline to come: for one that has passed poll would not wait at all.
  double wait_s = 1e9;
  const double deadline = kill_at_ != 0 ? kill_at_ : terminate_at_;
  if (deadline != 0) wait_s = deadline - steady_seconds();
  if (first_done_s_ != 0) wait_s = std::min(wait_s, kLook);
  return wait_s == 1e9 ? -1 : std::max(0, static_cast<int>(wait_s * 1e3) + 1);
}

void LocalRun::read_signals() {
  signalfd_siginfo signal;
  while (read(attempt_.signals, &signal, sizeof(signal)) == sizeof(signal)) {
    if (signal.ssi_signo != SIGCHLD) {
      interrupt(signal);
      continue;
    }
    for (Child& child : children_) {
      int status = 0;
      if (!child.status && waitpid(child.pid, &status, WNOHANG) == child.pid)
        note_end(child, status);
    }
  }
}

void LocalRun::interrupt(const signalfd_siginfo& signal) {
  if (end_.signal != 0) {  // a second Ctrl-C is in a hurry
    if (steady_seconds() - interrupted_at_ > kOneStop) kill_at_ = steady_seconds();
    return;
  }
  end_.signal = static_cast<int>(signal.ssi_signo);
  interrupted_at_ = steady_seconds();
  end_.failed_first = !end_.failed.empty();
  // The terminal has sent its Ctrl-C to the ranks as well. Twice would be a second one for them,
  // who may be late to see the first.
  if (signal.ssi_code != SI_KERNEL || !all_started_) signal_running(end_.signal, /*ends=*/false);
  if (terminate_at_ == 0) terminate_at_ = interrupted_at_ + options_.stop_grace_s;
}

void LocalRun::note_end(Child& child, int status) {
  child.status = status;
  child.out.pass_on();
  child.err.pass_on();
  if (status == 0) {
    if (first_done_s_ == 0) first_done_s_ = rank_0_moved_s_ = steady_seconds();
    return;
  }
  if (child.ended_by_us) return;
  const bool stopped = end_.signal != 0 && was_stopped(status);
  if (stopped && WIFEXITED(status)) return;  // in good order
  if (!stopped) end_.failed.push_back(child.rank);
  store_.post_death(kKeyPrefix, child.rank, describe_exit(status));
  // While a stop is under way, rank 0 may be saving whatever becomes of the others.
  const double deadline = steady_seconds() + options_.grace_s;
  if (terminate_at_ == 0 || (child.rank == 0 && deadline < terminate_at_)) terminate_at_ = deadline;
}

void LocalRun::end_by_force() {
  const double now = steady_seconds();
  if (kill_at_ != 0 && !killed_ && now >= kill_at_) {
    signal_running(SIGKILL, /*ends=*/true);
    killed_ = true;
  } else if (terminate_at_ != 0 && kill_at_ == 0 && now >= terminate_at_) {
    signal_running(SIGTERM, /*ends=*/true);
    signal_running(SIGCONT, /*ends=*/true);  // a stopped rank dies of the SIGTERM when it goes on
    kill_at_ = now + kKillDelay;
  }
}

/// A rank that is done and does not end, for a destructor or a device that hangs, must not keep
/// the run. While a stop is under way, the ranks have until terminate_at_.
void LocalRun::end_the_late() {
  if (first_done_s_ == 0 || terminate_at_ != 0) return;
  const double now = steady_seconds();
  const bool late = now - first_done_s_ >= end_.late_after_s;
  for (Child& child : children_) {
    if (child.status || child.ended_by_us) continue;
    if (child.rank == 0 ? !rank_0_is_late(now) : !late) continue;
    end_.late.push_back(child.rank);
    child.ended_by_us = true;
    kill(child.pid, SIGKILL);
  }
}

/// Rank 0 may save for as long as it shows life: that nobody waits for.
bool LocalRun::rank_0_is_late(double now) {
  const std::string beat = store_.read(heartbeat_key(kKeyPrefix, 0));
  if (beat != rank_0_beat_) {
    rank_0_beat_ = beat;
    rank_0_moved_s_ = now;
  }
  if (!said_waiting_ && now - first_done_s_ >= end_.late_after_s) {
    said_waiting_ = true;
    err_.line(fmt::format("{}waiting for rank 0, which saves or ends since {:.0f} s", kExitMessage,
                          now - first_done_s_));
  }
  return now - rank_0_moved_s_ >= end_.late_after_s;
}

/// Signals all that have not ended; `ends`: their end is our doing then.
void LocalRun::signal_running(int signal, bool ends) {
  for (Child& child : children_) {
    if (child.status) continue;
    kill(child.pid, signal);
    child.ended_by_us |= ends;
  }
}

}  // namespace

Ended run_local_ranks(const LaunchOptions& options, const Attempt& attempt) {
  return LocalRun(options, attempt).run();
}

}  // namespace distca
