#include "bench/namespaces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <sstream>

#include "distca/base/clock.h"
#include "distca/base/error.h"

namespace distca::bench {
namespace {

constexpr const char* kPrefix = "distca-overlap-";  // then the process, then the end
constexpr const char* kPort = "29400";
constexpr double kGrace = 10;  // seconds that the other rank has to say why it ended
constexpr double kMercy = 2;   // seconds between SIGTERM and SIGKILL

std::string need(const std::vector<std::string>& command) {
  const Ran ran = run_program(command);
  if (ran.exit_code == 0) return ran.output;
  throw Error(ErrorKind::kIo, "`{}` failed: {}", fmt::join(command, " "),
              ran.output.empty() ? fmt::format("exit code {}", ran.exit_code) : ran.output);
}

std::string namespace_name(pid_t process, int end) {
  return fmt::format("{}{}-{}", kPrefix, process, end);
}

/// Of a run that was killed before it could do so.
void remove_leftovers() {
  std::istringstream lines(run_program({"ip", "netns", "list"}).output);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find(' '));
    if (!name.starts_with(kPrefix)) continue;
    const char* digits = name.data() + std::strlen(kPrefix);
    pid_t process = 0;
    if (std::from_chars(digits, name.data() + name.size(), process).ec != std::errc()) continue;
    if (kill(process, 0) != 0 && errno == ESRCH) run_program({"ip", "netns", "del", name});
  }
}

/// The child, after fork.
[[noreturn]] void become(const std::vector<std::string>& command, const sigset_t& mask) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 1; }

}  // namespace

Ran run_program(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorKind::kIo, "no pipe for {}: {}", command[0], std::strerror(errno));
  }
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    become(command, mask);
  }
  close(ends[1]);
  Ran ran{.exit_code = 127};
  std::array<char, 4096> buffer;
  while (child > 0) {
    const ssize_t got = read(ends[0], buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    ran.output.append(buffer.data(), static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  if (child > 0 && waitpid(child, &status, 0) == child) ran.exit_code = exit_code_of(status);
  while (ran.output.ends_with('\n')) ran.output.pop_back();
  return ran;
}

/// Signals that end a run, and the news of an ended child, held back while it lives.
class NamespacePair::HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&held_, signal);
    pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  /// The next one, or 0 after a while.
  int next() const {
    const timespec while_waiting{.tv_sec = 0, .tv_nsec = 200'000'000};
    return std::max(0, sigtimedwait(&held_, nullptr, &while_waiting));
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t held_{}, before_{};
};

NamespacePair::NamespacePair() : signals_(std::make_unique<HeldSignals>()) {
  remove_leftovers();
  try {
    for (const int end : {0, 1}) need({"ip", "netns", "add", name(end)});
    need({"ip", "-n", name(0), "link", "add", kInterface, "type", "veth", "peer", "name",
          kInterface, "netns", name(1)});
    for (const int end : {0, 1}) make(end);
  } catch (...) {
    remove();
    throw;
  }
}

void NamespacePair::make(int end) {
  need({"ip", "-n", name(end), "addr", "add", address(end) + "/30", "dev", kInterface});
  for (const char* link : {"lo", kInterface}) {
    need({"ip", "-n", name(end), "link", "set", link, "up"});
  }
  // Packets as long as the segments that TCP hands down: the least processor time a byte.
  need({"ip", "-n", name(end), "link", "set", kInterface, "mtu", "65535"});
  // Nothing is lost on this wire and nobody else uses it: TCP need neither probe for its rate nor
  // start slowly after each pause of the exchange.
  need({"ip", "netns", "exec", name(end), "sh", "-c",
        "echo reno > /proc/sys/net/ipv4/tcp_congestion_control && "
        "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"});
}

NamespacePair::~NamespacePair() { remove(); }

void NamespacePair::remove() {
  for (const int end : {0, 1}) run_program({"ip", "netns", "del", name(end)});
}

std::string NamespacePair::name(int end) const { return namespace_name(getpid(), end); }

std::string NamespacePair::address(int end) { return fmt::format("10.97.0.{}", end + 1); }

TokenBucket token_bucket(double mb_per_s) {
  const auto rate = static_cast<long long>(mb_per_s * 1e6);
  return {.rate = rate, .burst = std::max(72LL << 10, rate / 1000), .limit = 4LL << 20};
}

void limit_rate(double mb_per_s) {
  if (mb_per_s == 0) {
    run_program({"tc", "qdisc", "del", "dev", NamespacePair::kInterface, "root"});
    return;
  }
  const TokenBucket bucket = token_bucket(mb_per_s);
  need({"tc", "qdisc", "replace", "dev", NamespacePair::kInterface, "root", "tbf", "rate",
        fmt::format("{}bps", bucket.rate), "burst", std::to_string(bucket.burst), "limit",
        std::to_string(bucket.limit)});
}

std::string why_no_namespaces() {
  if (geteuid() != 0) return "needs root to make network namespaces";
  for (const char* program : {"ip", "tc"}) {
    if (run_program({program, "-V"}).exit_code != 0) {
      return fmt::format("needs iproute2: there is no program {}", program);
    }
  }
  try {
    const NamespacePair pair;
    need({"ip", "netns", "exec", pair.name(0), "tc", "qdisc", "add", "dev",
          NamespacePair::kInterface, "root", "tbf", "rate", "1000000bps", "burst", "100000",
          "limit", "1000000"});
  } catch (const Error& error) {
    return fmt::format("needs network namespaces, veth and tc's tbf: {}", error.what());
  }
  return "";
}

pid_t NamespacePair::start(int rank, const std::vector<std::string>& command) const {
  std::vector<std::string> words = {
      "ip", "netns", "exec", name(rank), "env", fmt::format("RANK={}", rank),
      fmt::format("LOCAL_RANK={}", rank), "WORLD_SIZE=2", fmt::format("MASTER_ADDR={}", address(0)),
      fmt::format("MASTER_PORT={}", kPort), fmt::format("GLOO_SOCKET_IFNAME={}", kInterface),
      // No name server is in there: who asks for names must not wait for one.
      "RES_OPTIONS=timeout:1 attempts:1"};
  words.insert(words.end(), command.begin(), command.end());
  const pid_t child = fork();
  if (child == 0) become(words, signals_->before());
  if (child < 0) {
    throw Error(ErrorKind::kIo, "cannot start rank {}: {}", rank, std::strerror(errno));
  }
  return child;
}

int NamespacePair::run(const std::vector<std::string>& command) const {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // rank 0's store outlives it: it must not outlive us
  std::array<pid_t, 2> ranks{};
  for (const int rank : {0, 1}) ranks[rank] = start(rank, command);
  int code = 0;
  double kill_at = 0;  // steady seconds; 0: all is well
  const auto end_all = [&](int signal) {
    for (const pid_t rank : ranks) {
      if (rank > 0) kill(rank, signal);
    }
  };
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended < 0 && errno == ECHILD) return code;
    if (ended > 0) {
      const auto rank = std::find(ranks.begin(), ranks.end(), ended);
      if (rank == ranks.end()) continue;  // the store
      *rank = 0;
      if (code == 0) code = exit_code_of(status);
      if (code != 0 && kill_at == 0) kill_at = steady_seconds() + kGrace;
      continue;
    }
    if (kill_at != 0 && steady_seconds() > kill_at) end_all(SIGKILL);
    const int signal = signals_->next();
    if (signal == 0 || signal == SIGCHLD) continue;
    code = 130;
    end_all(SIGTERM);
    kill_at = steady_seconds() + kMercy;
  }
}

}  // namespace distca::bench
