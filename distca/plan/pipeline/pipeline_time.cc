#include "distca/plan/pipeline/pipeline_time.h"

#include <algorithm>

#include "distca/base/error.h"
#include "distca/cost/finish_time.h"

namespace distca {
namespace {

int64_t rounded(double ps) { return static_cast<int64_t>(std::min(ps, 0x1p62) + 0.5); }

/// Sums over the slots of a tick.
class TickTime {
 public:
  TickTime(const PipelineRequest& request, Pass pass) : request_(request), pass_(pass) {
    figures_.pass = pass;
  }

  /// `plan` is that of the slot; `nano_batches` [stages] are those in it.
  void add(const Plan& plan, std::span<const int> nano_batches, const OtherWork& other_work) {
    const std::vector<RankWork> work = slot_work(request_, nano_batches, pass_, other_work);
    rank_ps_.resize(work.size());
    double longest_linear = 0, longest_phases = 0, longest_attention = 0;
    int64_t load = 0;
    for (size_t rank = 0; rank < work.size(); ++rank) {
      DISTCA_CHECK(work[rank].attention_ps_per_kload > 0, "the speed of rank {} is unknown", rank);
      const bool worker = static_cast<int>(rank) < plan.layout.num_workers();
      const int64_t tokens = worker ? plan.layout.num_tokens(static_cast<int>(rank)) : 0;
      RankWork own = work[rank];
      own.tokens = tokens;
      const double linear = linear_ps(own);
      const double attention = attention_ps(work[rank], load_of(plan, rank));
      longest_linear = std::max(longest_linear, linear);
      // Weight gradients stand behind the dispatch, so that the chain of the slot needs none.
      longest_phases = std::max(longest_phases, linear - static_cast<double>(own.other_ps));
      longest_attention = std::max(longest_attention, attention);
      rank_ps_[rank] += linear + attention;
      add_bytes(plan.load[rank]);
      load += load_of(plan, rank);
    }
    figures_.load += load;
    figures_.ideal_ps += least_ps(work, request_.balance_target, load);
    meeting_ps_ += longest_linear + longest_attention;
    figures_.max_over_share = std::max(figures_.max_over_share, max_over_share(plan));
    const int64_t exchange = exchange_ps(plan);
    figures_.exchange_ps += exchange;
    longest_chain_ps_ =
        std::max(longest_chain_ps_, rounded(longest_phases + longest_attention) + exchange);
  }

  int64_t longest_chain_ps() const { return longest_chain_ps_; }

  TickFigures figures(int working) const {
    TickFigures result = figures_;
    const bool whole = request_.balance_target == BalanceTarget::kWhole;
    result.working = working;
    result.planned_ps = rounded(whole ? *std::ranges::max_element(rank_ps_) : meeting_ps_);
    result.exposed_ps = std::max<int64_t>(0, longest_chain_ps_ - result.planned_ps);
    return result;
  }

 private:
  /// The time of the exchanges of all layer steps, on the rank that sends or receives most.
  int64_t exchange_ps(const Plan& plan) const {
    if (request_.bytes_per_us == 0) return 0;
    int64_t qkv = 0, o = 0;
    for (const ServerLoad& load : plan.load) {
      qkv = std::max({qkv, load.send_bytes, load.receive_bytes});
      o = std::max({o, load.o_send_bytes, load.o_receive_bytes});
    }
    const int64_t bytes = pass_ == Pass::kForward ? qkv + o : 2 * qkv + o;
    return rounded(static_cast<double>(bytes) * static_cast<double>(request_.layer_steps) * 1e6 /
                   static_cast<double>(request_.bytes_per_us));
  }

  void add_bytes(const ServerLoad& load) {
    figures_.bytes += load.send_bytes + load.o_send_bytes;
    figures_.max_send_bytes = std::max(figures_.max_send_bytes, load.send_bytes);
  }

  const PipelineRequest& request_;
  Pass pass_;
  TickFigures figures_;
  std::vector<double> rank_ps_;  // [ranks]
  double meeting_ps_ = 0;        // for ranks that meet before and after attention
  int64_t longest_chain_ps_ = 0;
};

/// [stages] The nano-batches of the tick's other slot, or -1 where there is none.
std::vector<int> partners(const PipelineRequest& request, std::span<const int> nano_batches) {
  std::vector<int> all;
  for (const int nano : nano_batches) {
    const int other = nano < 0 || request.slots == 1 ? -1 : nano ^ 1;
    all.push_back(other < static_cast<int>(request.nano_batches.size()) ? other : -1);
  }
  return all;
}

}  // namespace

SlotTime slot_time(const PipelineRequest& request, const Plan& plan,
                   std::span<const int> nano_batches, Pass pass, const OtherWork& other_work) {
  TickTime time(request, pass);
  time.add(plan, nano_batches, other_work);
  const TickFigures figures = time.figures(/*working=*/0);
  const std::vector<int> partner = partners(request, nano_batches);
  return {.compute_ps = figures.planned_ps,
          .exchange_ps = figures.exchange_ps,
          .chain_ps = time.longest_chain_ps(),
          .partner_ps =
              least_ps(slot_work(request, partner, pass, {.weights = other_work.partner_weights}),
                       request.balance_target, slot_load(request, partner))};
}

std::vector<TickFigures> tick_figures(const PipelineRequest& request, const PipelinePlan& plan) {
  std::vector<TickFigures> all;
  for (int tick = 0; tick < static_cast<int>(plan.ticks.size()); ++tick) {
    TickTime time(request, plan.ticks[tick].stages[0].pass);
    for (int slot = 0; slot < plan.slots; ++slot) {
      const int index = plan.plan_of_slot[tick][slot];
      if (index < 0) continue;
      time.add(plan.plans[index], plan.nano_batches_of(tick, slot),
               {.weights = plan.weights_of(tick, slot)});
    }
    all.push_back(time.figures(plan.ticks[tick].num_working()));
  }
  return all;
}

}  // namespace distca
