#include "distca/train/same_plan.h"

#include <algorithm>
#include <array>
#include <vector>

#include "distca/comm/collectives.h"

namespace distca {
namespace {

struct RankPlan {
  PlanWord word;
  int32_t failed = 0;
  ErrorKind kind = ErrorKind::kData;  // kind of the failure
};

}  // namespace

PlanWord compare_plans(Communicator& comm, const PlanWord& mine, std::optional<Error>* failure) {
  RankPlan report{.word = mine};
  if (*failure) report = {.word = {}, .failed = 1, .kind = (*failure)->kind()};
  const std::vector<RankPlan> all = all_gather(comm, report, "plan hash");
  if (const auto first = std::ranges::find(all, 1, &RankPlan::failed); first != all.end()) {
    const std::string text =
        text_of_rank(comm, static_cast<int>(first - all.begin()),
                     *failure ? (*failure)->what() : "", "reporting why there is no plan");
    *failure = Error(first->kind, "{}", text);
    return {};
  }
  PlanWord sum{.hash = mine.hash};
  for (int rank = 0; rank < comm.size(); ++rank) {
    const PlanWord& word = all[rank].word;
    DISTCA_CHECK(word.hash == mine.hash,
                 "rank {} has another plan ({:016x}) than rank {} ({:016x})", rank, word.hash,
                 comm.rank(), mine.hash);
    sum.bad_tokens += word.bad_tokens;
    sum.targets_left_out += word.targets_left_out;
    sum.stop_signal = std::max(sum.stop_signal, word.stop_signal);
  }
  return sum;
}

std::string text_of_rank(Communicator& comm, int from, const std::string& mine,
                         std::string_view operation) {
  std::array<char, Error::kMostBytes> text{};
  std::copy_n(mine.begin(), std::min(mine.size(), text.size()), text.begin());
  const auto said = all_gather(comm, text, operation)[from];
  return {said.begin(), std::ranges::find(said, '\0')};
}

}  // namespace distca
