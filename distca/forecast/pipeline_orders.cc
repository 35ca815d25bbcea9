#include "distca/forecast/pipeline_orders.h"

#include <algorithm>
#include <set>

#include "distca/base/error.h"
#include "distca/config/run_grid.h"
#include "distca/cost/speeds.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/memory_peak.h"
#include "distca/program/played_time.h"

namespace distca {
namespace {

/// The share of a phase's forward that its backward does again under full recomputation. Ranks that
/// divide layers gather what the projections have read, and compute gate and up; the projections
/// only where Q and K are normed.
double share_again(const Config& config, const Op& op) {
  if (config.train.recompute != Recompute::kFull || op.pass == Pass::kForward) return 0;
  if (config.tensor_ranks() > 1 && op.kind == OpKind::kPostAttention) return 2. / 3;
  if (config.tensor_ranks() > 1 && !config.model.has_qk_norm()) return 0;
  return op.kind == OpKind::kPreAttention || op.kind == OpKind::kPostAttention ? 1 : 0;
}

/// Seconds of an operation.
double price(const Config& config, const Op& op) {
  const double forward = op.leaves_weights ? op.flops : op.flops / 2;
  return (op.flops + share_again(config, op) * forward) /
         (static_cast<double>(kAssumedTflops) * 1e12);
}

OrderForecast forecast(const Config& config, const Batch& batch, int num_workers) {
  const BatchPlans plans = plan_later_batch(config, batch, num_workers);
  const BatchPrograms made(config, plans, ProgramRequest::Kind::kTrain, num_workers);
  OrderForecast order{.outstanding = config.parallel.outstanding_weight_gradients};
  std::vector<Program> programs;
  for (int rank = 0; rank < num_ranks(config, num_workers); ++rank) {
    programs.push_back(made.of(rank));
    if (rank == 0) check_size_together(programs[0], num_ranks(config, num_workers), "--compare");
    PeakOfRank peak(config, rank, num_workers);
    peak.add(programs.back());
    order.peak_bytes = std::max(order.peak_bytes, peak.peak().total());
    order.nano_batches_in_flight =
        std::max(order.nano_batches_in_flight, most_in_flight(programs.back()));
  }
  const auto seconds = [&](int, const Op& op) { return price(config, op); };
  for (const PlayedTime& rank : played_times(programs, seconds, /*message_s=*/0)) {
    order.step_s = std::max(order.step_s, rank.end_s);
    order.busy_s += rank.worked_s / static_cast<double>(programs.size());
  }
  return order;
}

/// Stages that compute their own attention have no dedicated server, and nothing fills their ticks.
bool is_allowed(const Config& config) {
  return config.parallel.pipeline_schedule != PipelineSchedule::kAtHome ||
         (config.servers.dedicated == 0 && config.plan.fill_ticks == FillTicks::kExact);
}

}  // namespace

std::vector<OrderForecast> compare_orders(const Config& config, const Batch& batch,
                                          int num_workers) {
  DISTCA_CHECK(run_grid(config, num_workers).is_pipeline(), "there is no pipeline");
  std::vector<OrderForecast> orders;
  for (const PipelineScheduleName& of : kPipelineSchedules) {
    for (const int64_t outstanding :
         std::set<int64_t>{0, 1, 2, config.parallel.outstanding_weight_gradients}) {
      Config one = config;
      one.parallel.pipeline_schedule = of.schedule;
      one.parallel.outstanding_weight_gradients = outstanding;
      if (!is_allowed(one)) continue;
      try {
        orders.push_back(forecast(one, batch, num_workers));
      } catch (const Error& error) {
        orders.push_back({.refused = error.what(), .outstanding = outstanding});
      }
      orders.back().schedule = of.name;
    }
  }
  return orders;
}

}  // namespace distca
