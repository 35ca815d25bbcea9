#include "distca/comm/health/diagnosis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <tuple>

namespace distca {
namespace {

constexpr size_t kMostNamed = 3;

std::string list_ranks(const std::vector<int>& ranks) {
  const auto named = std::span(ranks).first(std::min(ranks.size(), kMostNamed));
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  text += fmt::format("{}", fmt::join(named, ", "));
  if (ranks.size() > kMostNamed) text += fmt::format(" and {} more", ranks.size() - kMostNamed);
  return text;
}

std::string last_seen(const RankNews& news) {
  return fmt::format("last seen: {}", to_string(news.last));
}

std::string blame_text(int rank, const RankNews& news) {
  switch (news.state) {
    case RankState::kDead:
      return fmt::format("rank {} {} ({})", rank, news.death, last_seen(news));
    case RankState::kFailed:
      return fmt::format("rank {} ended with an error ({})", rank, last_seen(news));
    case RankState::kSilent:
      return fmt::format("rank {} is silent since {:.1f} s ({})", rank, news.silent_s,
                         last_seen(news));
    case RankState::kAbsent:
      return fmt::format("rank {} never came", rank);
    case RankState::kFinished:
      return fmt::format("rank {} has already ended ({})", rank, last_seen(news));
    case RankState::kLive:
      break;
  }
  if (!news.awaits.empty()) {
    return fmt::format("rank {} awaits {} (at {})", rank, list_ranks(news.awaits),
                       to_string(news.last));
  }
  return fmt::format("rank {} is alive but behind (at {})", rank, to_string(news.last));
}

/// Without whom the wait does not end: its peers, whom these await, and so on.
std::vector<int> needed_by(const FailedWait& wait, const std::vector<RankNews>& news) {
  std::vector<bool> known(news.size());
  known[wait.rank] = true;
  std::vector<int> needed;
  const auto add = [&](int rank) {
    if (known[rank]) return;
    known[rank] = true;
    needed.push_back(rank);
  };
  for (const int peer : wait.peers) add(peer);
  for (int rank = 0; wait.peers.empty() && rank < static_cast<int>(news.size()); ++rank) add(rank);
  for (size_t i = 0; i < needed.size(); ++i) {
    for (const int next : news[needed[i]].awaits) add(next);
  }
  return needed;
}

/// Where whom each awaits leads to from this rank on.
std::vector<int> circle_from(int rank, const std::vector<RankNews>& news) {
  std::vector<int> path;
  auto again = path.end();
  while ((again = std::ranges::find(path, rank)) == path.end()) {
    path.push_back(rank);
    if (news[rank].awaits.empty()) return {};
    rank = news[rank].awaits.front();
  }
  return std::vector<int>(again, path.end());
}

std::vector<int> blamed_ranks(const FailedWait& wait, const std::vector<RankNews>& news) {
  for (const RankState worst :
       {RankState::kDead, RankState::kFailed, RankState::kSilent, RankState::kAbsent}) {
    std::vector<int> found;
    for (int rank = 0; rank < static_cast<int>(news.size()); ++rank) {
      if (rank != wait.rank && news[rank].state == worst) found.push_back(rank);
    }
    if (!found.empty()) return found;
  }
  if (news.empty()) return {};
  const std::vector<int> needed = needed_by(wait, news);
  const auto key = [&](int rank) {
    return std::make_tuple(news[rank].state == RankState::kLive, news[rank].last.step, rank);
  };
  int behind = -1;
  for (const int rank : needed) {
    const bool waits = news[rank].state == RankState::kLive && !news[rank].awaits.empty();
    if (!waits && (behind < 0 || key(rank) < key(behind))) behind = rank;
  }
  if (behind >= 0) return {behind};
  return needed.empty() ? std::vector<int>{} : circle_from(needed.front(), news);
}

}  // namespace

std::string to_string(const Activity& activity) {
  const std::string& operation = activity.operation.empty() ? "start" : activity.operation;
  if (activity.step < 0) return operation;
  return fmt::format("step {}, {}", activity.step, operation);
}

std::string diagnosis(const FailedWait& wait, std::vector<RankNews> news) {
  if (!news.empty()) news[wait.rank].awaits = wait.peers;
  std::string text;
  std::vector<int> blamed = blamed_ranks(wait, news);
  const bool nobody_ended = blamed.empty() || news[blamed[0]].state == RankState::kLive;
  if (!wait.why.empty() && nobody_ended) {
    text = fmt::format("{}; ", wait.why);
    blamed.clear();
  }
  for (size_t i = 0; i < std::min(blamed.size(), kMostNamed); ++i) {
    text += (i == 0 ? "" : ", ") + blame_text(blamed[i], news[blamed[i]]);
  }
  if (blamed.size() > kMostNamed) text += fmt::format(" and {} more", blamed.size() - kMostNamed);
  if (!blamed.empty()) text += "; ";
  const std::string it = blamed.size() == 1 ? "it" : "them";
  const std::string peers = blamed == wait.peers ? it : list_ranks(wait.peers);
  if (wait.peers.empty()) {
    text += fmt::format("rank {} was in {}", wait.rank, to_string(wait.at));
  } else if (wait.end == WaitEnd::kGaveUp) {
    text += fmt::format("rank {} waited {:.1f} s for {} in {}", wait.rank, wait.waited_s, peers,
                        to_string(wait.at));
  } else {
    text += fmt::format("rank {} lost its connection to {} in {}", wait.rank, peers,
                        to_string(wait.at));
  }
  return text;
}

}  // namespace distca
