#include "distca/comm/launch.h"

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
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/comm/board.h"
#include "distca/comm/local_store.h"

namespace distca {
namespace {

constexpr const char* kPrefix = "distca/";  // of the store's keys (rendezvous.cc)
constexpr std::string_view kLastWords = "distca: ";
constexpr double kMercy = 2;  // seconds between SIGTERM and SIGKILL

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;  // whoever read our output is gone
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

/// What a rank prints on one stream, passed on line by line.
struct Stream {
  int from = -1;  // our end of the pipe; -1: none, or closed
  int to = -1;
  std::string line = {};
};

struct Child {
  int rank = 0;
  pid_t pid = -1;
  Stream streams[2] = {};          // stdout, stderr
  std::string last_words = {};     // the first line on stderr that begins with kLastWords
  std::optional<int> status = {};  // once it has ended
  bool ended_by_us = false;
};

class LocalRun {
 public:
  explicit LocalRun(const LaunchOptions& options)
      : options_(options), socket_(Interface::kLoopback, options.port), port_(socket_.port()) {}
  ~LocalRun();

  int run();

 private:
  void catch_signals();
  void make_environment(int rank);
  void set(std::string_view name, std::string_view value);
  void spawn(int rank);
  [[noreturn]] void become_rank(const int (&ends)[2], pid_t launcher);
  void wait_for_news();
  void read_signals();
  void interrupt(const signalfd_siginfo& signal);
  void pass_on(Child& child, Stream& stream);
  void emit(Child& child, Stream& stream);
  void reap();
  void note_end(Child& child, int status);
  void end_by_force();
  void signal_running(int signal);
  bool running() const;
  int report();

  const LaunchOptions& options_;
  ListenSocket socket_;
  const uint16_t port_;
  std::optional<LocalStore> store_;
  std::vector<Child> children_;
  std::vector<int> failed_;  // ranks, in the order in which they ended
  sigset_t old_mask_ = {};
  int signals_ = -1;
  bool interrupted_ = false;
  double terminate_at_ = 0, kill_at_ = 0;  // steady seconds; 0: not yet decided
  bool killed_ = false;
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
  for (Child& child : children_) {
    for (Stream& stream : child.streams) {
      if (stream.from >= 0) close(stream.from);
    }
  }
  if (signals_ < 0) return;
  close(signals_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

int LocalRun::run() {
  catch_signals();
  store_.emplace(socket_);  // its threads inherit our mask: signals come to us alone
  store_->belong_to("distca", kPrefix, options_.workers);
  cannot_run_ = fmt::format("{}error: cannot run {}\n", kLastWords, options_.command.at(0));
  for (const std::string& argument : options_.command) {
    argv_.push_back(const_cast<char*>(argument.c_str()));
  }
  argv_.push_back(nullptr);
  children_.reserve(options_.workers);
  for (int rank = 0; rank < options_.workers; ++rank) spawn(rank);
  while (running()) {
    wait_for_news();
    end_by_force();
  }
  return report();
}

void LocalRun::catch_signals() {
  sigset_t mask;
  sigemptyset(&mask);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, &old_mask_);
  signals_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0) throw Error(ErrorKind::kIo, "no signalfd: {}", std::strerror(errno));
}

void LocalRun::make_environment(int rank) {
  environment_.clear();
  for (char** entry = environ; *entry != nullptr; ++entry) environment_.emplace_back(*entry);
  set("DISTCA_RANK", std::to_string(rank));
  set("DISTCA_SIZE", std::to_string(options_.workers));
  set("DISTCA_MASTER_ADDR", loopback_address());
  set("DISTCA_MASTER_PORT", std::to_string(port_));
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
  int ends[2] = {-1, -1};
  for (int i = 0; i < 2; ++i) {
    if (rank == 0 && i == 0) continue;  // rank 0's stdout is ours
    int both[2];
    if (pipe2(both, O_CLOEXEC) != 0) {
      throw Error(ErrorKind::kIo, "no pipe for rank {}: {}", rank, std::strerror(errno));
    }
    fcntl(both[0], F_SETFL, O_NONBLOCK);
    child.streams[i] = {.from = both[0], .to = i == 0 ? STDOUT_FILENO : STDERR_FILENO};
    ends[i] = both[1];
  }
  const pid_t launcher = getpid();
  child.pid = fork();
  if (child.pid == 0) become_rank(ends, launcher);
  for (int end : ends) {
    if (end >= 0) close(end);
  }
  if (child.pid < 0) {
    throw Error(ErrorKind::kIo, "cannot start rank {}: {}", rank, std::strerror(errno));
  }
  children_.push_back(std::move(child));
}

/// After fork: only calls that are safe in the child of a program with threads.
void LocalRun::become_rank(const int (&ends)[2], pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  if (ends[0] >= 0) dup2(ends[0], STDOUT_FILENO);
  if (ends[1] >= 0) dup2(ends[1], STDERR_FILENO);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  execvpe(argv_[0], argv_.data(), envp_.data());
  write_all(STDERR_FILENO, cannot_run_);
  _exit(2);
}

void LocalRun::wait_for_news() {
  std::vector<pollfd> polled = {{.fd = signals_, .events = POLLIN, .revents = 0}};
  std::vector<std::pair<Child*, Stream*>> readers;
  for (Child& child : children_) {
    for (Stream& stream : child.streams) {
      if (stream.from < 0) continue;
      polled.push_back({.fd = stream.from, .events = POLLIN, .revents = 0});
      readers.emplace_back(&child, &stream);
    }
  }
  int timeout_ms = -1;
  // Only the deadline to come: for one that has passed poll would not wait at all.
  const double deadline = kill_at_ != 0 ? kill_at_ : terminate_at_;
  if (deadline != 0 && !killed_) {
    timeout_ms = std::max(0, static_cast<int>((deadline - steady_seconds()) * 1e3) + 1);
  }
  if (poll(polled.data(), polled.size(), timeout_ms) < 0 && errno != EINTR) {
    throw Error(ErrorKind::kIo, "poll: {}", std::strerror(errno));
  }
  for (size_t i = 0; i < readers.size(); ++i) {
    if (polled[i + 1].revents != 0) pass_on(*readers[i].first, *readers[i].second);
  }
  if (polled[0].revents != 0) read_signals();
}

void LocalRun::read_signals() {
  signalfd_siginfo signal;
  while (read(signals_, &signal, sizeof(signal)) == sizeof(signal)) {
    if (signal.ssi_signo == SIGCHLD) {
      reap();
    } else {
      interrupt(signal);
    }
  }
}

void LocalRun::interrupt(const signalfd_siginfo& signal) {
  if (interrupted_) {  // a second Ctrl-C is in a hurry
    kill_at_ = steady_seconds();
    return;
  }
  interrupted_ = true;
  // The terminal has sent its Ctrl-C to the ranks as well.
  if (signal.ssi_code != SI_KERNEL) signal_running(static_cast<int>(signal.ssi_signo));
  terminate_at_ = steady_seconds() + options_.grace_s;
}

void LocalRun::pass_on(Child& child, Stream& stream) {
  char buffer[4096];
  while (stream.from >= 0) {
    const ssize_t got = read(stream.from, buffer, sizeof(buffer));
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return;
    }
    if (got <= 0) {
      close(stream.from);
      stream.from = -1;
      if (!stream.line.empty()) emit(child, stream);
      return;
    }
    for (const char byte : std::string_view(buffer, static_cast<size_t>(got))) {
      if (byte == '\n') {
        emit(child, stream);
      } else {
        stream.line += byte;
      }
    }
  }
}

void LocalRun::emit(Child& child, Stream& stream) {
  const std::string line = std::exchange(stream.line, {});
  if (stream.to == STDERR_FILENO && line.starts_with(kLastWords)) {
    if (child.last_words.empty()) child.last_words = line;
    return;
  }
  write_all(stream.to, fmt::format("[rank {}] {}\n", child.rank, line));
}

void LocalRun::reap() {
  for (Child& child : children_) {
    int status = 0;
    if (!child.status && waitpid(child.pid, &status, WNOHANG) == child.pid) note_end(child, status);
  }
}

void LocalRun::note_end(Child& child, int status) {
  child.status = status;
  for (Stream& stream : child.streams) pass_on(child, stream);
  if (status == 0) return;
  if (!child.ended_by_us && !interrupted_) {
    failed_.push_back(child.rank);
    store_->post_death(kPrefix, child.rank, describe_exit(status));
  }
  if (terminate_at_ == 0) terminate_at_ = steady_seconds() + options_.grace_s;
}

void LocalRun::end_by_force() {
  const double now = steady_seconds();
  if (kill_at_ != 0 && !killed_ && now >= kill_at_) {
    signal_running(SIGKILL);
    killed_ = true;
  } else if (terminate_at_ != 0 && kill_at_ == 0 && now >= terminate_at_) {
    signal_running(SIGTERM);
    signal_running(SIGCONT);  // a stopped rank dies of the SIGTERM when it goes on
    kill_at_ = now + kMercy;
    for (Child& child : children_) child.ended_by_us |= !child.status;
  }
}

void LocalRun::signal_running(int signal) {
  for (const Child& child : children_) {
    if (!child.status) kill(child.pid, signal);
  }
}

bool LocalRun::running() const {
  return std::any_of(children_.begin(), children_.end(),
                     [](const Child& child) { return !child.status; });
}

/// One line about the failure all others follow from, and its exit code.
int LocalRun::report() {
  if (interrupted_) return 130;
  if (failed_.empty()) return 0;
  // Ranks that ended with the verdict on another are victims of it.
  const std::string verdict = store_->verdict(kPrefix);
  auto is_cause = [&](int rank) {
    return verdict.empty() || children_[rank].last_words.find(verdict) == std::string::npos;
  };
  const auto cause = std::find_if(failed_.begin(), failed_.end(), is_cause);
  const Child& first = children_[cause == failed_.end() ? failed_.front() : *cause];
  const std::string death = fmt::format("rank {} {}", first.rank, describe_exit(*first.status));
  std::string line = first.last_words;
  if (line.empty()) {
    line = fmt::format("{}error: {}", kLastWords, verdict.starts_with(death) ? verdict : death);
  }
  write_all(STDERR_FILENO, line + "\n");
  return WIFEXITED(*first.status) ? WEXITSTATUS(*first.status) : 1;
}

}  // namespace

int launch_local(const LaunchOptions& options) {
  DISTCA_CHECK(options.workers > 0 && !options.command.empty(), "{} workers", options.workers);
  return LocalRun(options).run();
}

}  // namespace distca
