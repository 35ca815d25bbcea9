#include "distca/comm/health/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace distca {
namespace {

constexpr size_t kMostNamed = 3;

std::string last_seen(const RankNews& news) {
  return fmt::format("last seen: {}", to_string(news.last));
}

std::string accusation(int rank, const RankNews& news) {
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
  return fmt::format("rank {} is alive but behind (at {})", rank, to_string(news.last));
}

bool awaited(const FailedWait& wait, int rank) {
  return std::find(wait.peers.begin(), wait.peers.end(), rank) != wait.peers.end();
}

/// All ranks in the worst state that any is in; of live ones the single one furthest behind.
std::vector<int> culprits(const FailedWait& wait, const std::vector<RankNews>& news) {
  for (RankState worst : {RankState::kDead, RankState::kFailed, RankState::kSilent,
                          RankState::kAbsent, RankState::kFinished}) {
    std::vector<int> found;
    for (int rank = 0; rank < static_cast<int>(news.size()); ++rank) {
      if (rank != wait.rank && news[rank].state == worst) found.push_back(rank);
    }
    if (!found.empty()) return found;
  }
  int behind = -1;
  auto key = [&](int rank) {
    const Activity& last = news[rank].last;
    return std::make_tuple(last.step, last.sequence, last.among_some, !awaited(wait, rank), rank);
  };
  for (int rank = 0; rank < static_cast<int>(news.size()); ++rank) {
    if (rank != wait.rank && (behind < 0 || key(rank) < key(behind))) behind = rank;
  }
  return behind < 0 ? std::vector<int>{} : std::vector<int>{behind};
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kMostNamed) text += fmt::format(" and {} more", ranks.size() - kMostNamed);
  return text;
}

}  // namespace

void advance(Activity& activity, std::string_view operation, TakePart who) {
  activity.operation = operation;
  if (who == TakePart::kSomeRanks) {
    ++activity.among_some;
    return;
  }
  ++activity.sequence;
  activity.among_some = 0;
}

std::string to_string(const Activity& activity) {
  const std::string& operation = activity.operation.empty() ? "start" : activity.operation;
  if (activity.step < 0) return operation;
  return fmt::format("step {}, {}", activity.step, operation);
}

std::string verdict(const FailedWait& wait, const std::vector<RankNews>& news) {
  std::string text;
  std::vector<int> blamed = culprits(wait, news);
  const bool nobody_ended = blamed.empty() || news[blamed[0]].state == RankState::kLive;
  if (!wait.why.empty() && nobody_ended) {
    text = fmt::format("{}; ", wait.why);
    blamed.clear();
  }
  for (size_t i = 0; i < std::min(blamed.size(), kMostNamed); ++i) {
    text += (i == 0 ? "" : ", ") + accusation(blamed[i], news[blamed[i]]);
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
