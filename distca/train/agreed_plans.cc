#include "distca/train/agreed_plans.h"

#include <algorithm>
#include <string>
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
    const std::vector<std::string> why = all_gather_texts(comm, *failure ? (*failure)->what() : "",
                                                          "reporting why there is no plan");
    *failure = Error(first->kind, "{}", why[first - all.begin()]);
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

std::optional<PlannedBatch> AgreedPlans::next(ProgramRequest::Kind kind, Speeds speeds,
                                              int stop_signal) {
  std::optional<PlannedBatch> planned;
  try {
    if (!failure_) planned = ahead_->next(std::move(speeds));
  } catch (const Error& error) {
    failure_ = error;
  }
  PlanWord word{.stop_signal = stop_signal};
  if (planned) {
    DISTCA_CHECK(planned->kind == kind, "what was planned is of the other kind");
    word = {planned->figures.hash, planned->bad_tokens, planned->targets_left_out, stop_signal};
  }
  word = compare_plans(comm_, word, &failure_);
  stop_signal_ = static_cast<int>(word.stop_signal);
  if (failure_ || stop_signal_ != 0) return {};
  planned->figures.bad_tokens = word.bad_tokens;
  planned->figures.targets -= word.targets_left_out;
  return planned;
}

void AgreedPlans::restart(const std::function<void()>& change, Speeds speeds) {
  ahead_.reset();  // waits for its thread
  change();
  ahead_.emplace(plan_next_, std::move(speeds));
}

}  // namespace distca
