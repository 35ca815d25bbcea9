#include "distca/cost/finish_time.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "distca/base/error.h"

namespace distca {
namespace {

constexpr double kMost = 0x1p62;  // longer times and larger loads are cut to it

double longest_linear_ps(std::span<const RankWork> ranks) {
  double longest = 0;
  for (const RankWork& work : ranks) longest = std::max(longest, linear_ps(work));
  return longest;
}

/// A server, and when its attention may begin at the earliest.
struct Server {
  double begin_ps;
  double load_a_ps;
};

/// In the order in which they begin.
std::vector<Server> servers_of(std::span<const RankWork> ranks, BalanceTarget balance_target) {
  const double longest = longest_linear_ps(ranks);
  std::vector<Server> servers;
  for (const RankWork& work : ranks) {
    if (!work.serves) continue;
    DISTCA_CHECK_GE(work.attention_ps_per_kload, 1);
    servers.push_back(
        {.begin_ps = balance_target == BalanceTarget::kWhole ? linear_ps(work) : longest,
         .load_a_ps = 1000 / static_cast<double>(work.attention_ps_per_kload)});
  }
  std::ranges::stable_sort(servers, {}, &Server::begin_ps);
  return servers;
}

}  // namespace

double linear_ps(const RankWork& work) {
  return static_cast<double>(work.layers_ps_per_token + work.ends_ps_per_token) *
             static_cast<double>(work.tokens) +
         static_cast<double>(work.other_ps);
}

double attention_ps(const RankWork& work, int64_t load) {
  return static_cast<double>(work.attention_ps_per_kload) * static_cast<double>(load) / 1000;
}

int64_t least_ps(std::span<const RankWork> ranks, BalanceTarget balance_target, int64_t load) {
  const std::vector<Server> servers = servers_of(ranks, balance_target);
  DISTCA_CHECK(!servers.empty(), "none of {} ranks serves", ranks.size());
  // The load, plus the load that servers could compute in the time before they begin.
  auto work = static_cast<double>(load);
  double rate = 0, finish = 0;
  for (const Server& server : servers) {
    if (rate > 0 && finish <= server.begin_ps) break;
    work += server.begin_ps * server.load_a_ps;
    rate += server.load_a_ps;
    finish = work / rate;
  }
  finish = std::max(finish, longest_linear_ps(ranks));
  return static_cast<int64_t>(std::min(finish + 0.5, kMost));
}

int64_t load_within(std::span<const RankWork> ranks, BalanceTarget balance_target, int64_t ps) {
  double load = 0;
  for (const Server& server : servers_of(ranks, balance_target)) {
    load += std::max(0.0, static_cast<double>(ps) - server.begin_ps) * server.load_a_ps;
  }
  return static_cast<int64_t>(std::min(load, kMost));
}

}  // namespace distca
