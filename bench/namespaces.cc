#include "bench/namespaces.h"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include "distca/base/error.h"

namespace distca::bench {
namespace {

constexpr const char* kNamespacePrefix = "distca-overlap-";  // then the process, then the end
constexpr const char* kInterface = "wire";                   // each end's, in its namespace
constexpr const char* kAddress = "10.97.0.1";                // address of end 0

void need(const std::string& command) {
  const Ran ran = run_program(command);
  if (ran.exit_code != 0) {
    throw Error(ErrorKind::kIo, "`{}` failed with exit code {}: {}", command, ran.exit_code,
                ran.output);
  }
}

std::string namespaces_of(pid_t process) { return fmt::format("{}{}-", kNamespacePrefix, process); }

/// Removes the namespaces of runs that were killed before they could do so.
void remove_leftovers() {
  std::istringstream lines(run_program("ip netns list").output);
  for (std::string line; std::getline(lines, line);) {
    pid_t process = 0;
    int end = 0;
    if (sscanf(line.c_str(), (std::string(kNamespacePrefix) + "%d-%d").c_str(), &process, &end) !=
        2)
      continue;
    if (kill(process, 0) != 0 && errno == ESRCH)
      run_program(fmt::format("ip netns del {}{}", namespaces_of(process), end));
  }
}

void make_end(int end) {
  const std::string name = fmt::format("{}{}", namespaces_of(getpid()), end);
  need(fmt::format("ip -n {} addr add 10.97.0.{}/30 dev {}", name, end + 1, kInterface));
  need(fmt::format("ip -n {} link set lo up", name));
  // Packets as long as the segments that TCP hands down: the least processor time a byte.
  need(fmt::format("ip -n {} link set {} up mtu 65535", name, kInterface));
  // Nothing is lost on this wire and nobody else uses it: TCP need neither probe for its rate nor
  // start slowly after each pause of the exchange.
  need(
      fmt::format("ip netns exec {} sh -c 'echo reno > /proc/sys/net/ipv4/tcp_congestion_control "
                  "&& echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle'",
                  name));
}

/// In whatever namespace the calling process or `in`, "ip netns exec NAME ", is.
void set_bucket(double mb_per_s, const std::string& in = "") {
  const auto [rate, burst, limit] = token_bucket(mb_per_s);
  need(fmt::format("{}tc qdisc replace dev {} root tbf rate {}bps burst {} limit {}", in,
                   kInterface, rate, burst, limit));
}

}  // namespace

Ran run_program(const std::string& command) {
  FILE* pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr)
    throw Error(ErrorKind::kIo, "no pipe for `{}`: {}", command, strerror(errno));
  Ran ran;
  std::array<char, 4096> buffer;
  while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe))
    ran.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  while (ran.output.ends_with('\n')) ran.output.pop_back();
  return ran;
}

NamespacePair::NamespacePair() {
  remove_leftovers();
  const std::string ours = namespaces_of(getpid());
  try {
    for (const int end : {0, 1}) need(fmt::format("ip netns add {}{}", ours, end));
    need(fmt::format("ip -n {0}0 link add {1} type veth peer name {1} netns {0}1", ours,
                     kInterface));
    for (const int end : {0, 1}) make_end(end);
    set_bucket(1, fmt::format("ip netns exec {}0 ", ours));  // can it be limited?
  } catch (...) {
    remove();
    throw;
  }
}

NamespacePair::~NamespacePair() { remove(); }

void NamespacePair::remove() {
  for (const int end : {0, 1})
    run_program(fmt::format("ip netns del {}{}", namespaces_of(getpid()), end));
}

std::vector<std::string> NamespacePair::entering() const {
  const std::string script = fmt::format(
      "exec ip netns exec {}$DISTCA_RANK env -u DISTCA_RANK -u DISTCA_MASTER_ADDR "
      "-u DISTCA_MASTER_PORT RANK=$DISTCA_RANK LOCAL_RANK=$DISTCA_RANK WORLD_SIZE=2 "
      "MASTER_ADDR={} MASTER_PORT=29400 GLOO_SOCKET_IFNAME={} \"$@\"",
      namespaces_of(getpid()), kAddress, kInterface);
  return {"sh", "-c", script, "sh"};
}

TokenBucket token_bucket(double mb_per_s) {
  const auto rate = static_cast<int64_t>(mb_per_s * 1e6);
  return {.rate = rate, .burst = std::max<int64_t>(72 << 10, rate / 1000), .limit = 4 << 20};
}

void limit_rate(double mb_per_s) {
  if (mb_per_s > 0) return set_bucket(mb_per_s);
  run_program(fmt::format("tc qdisc del dev {} root", kInterface));
}

}  // namespace distca::bench
