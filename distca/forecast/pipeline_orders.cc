#include "distca/forecast/pipeline_orders.h"

#include <algorithm>
#include <set>

#include "distca/base/error.h"
#include "distca/config/run_grid.h"
#include "distca/cost/speeds.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/memory_peak.h"
#include "distca/forecast/op_prices.h"
#include "distca/sim/player.h"

namespace distca {
namespace {

OrderForecast forecast(const Config& config, const Batch& batch, int num_workers) {
  const BatchPlans plans = plan_later_batch(config, batch, num_workers);
  const BatchPrograms made(config, plans, ProgramRequest::Kind::kTrain, num_workers);
  OrderForecast order{.outstanding = config.parallel.outstanding_weight_gradients};
  std::vector<Program> programs;
  for (int rank = 0; rank < num_ranks(config, num_workers); ++rank) {
    programs.push_back(made.of(rank));
    if (rank == 0) check_size_together(programs[0], num_ranks(config, num_workers), "--compare");
    const PeakMemory peak = PeakOfRank(config, rank, num_workers).add(programs.back()).peak();
    order.peak_bytes = std::max(order.peak_bytes, peak.total());
    order.nano_batches_in_flight =
        std::max(order.nano_batches_in_flight, most_in_flight(programs.back()));
  }
  const RatePrices prices([&](int, const Op& op) {
    return computed_flops(config, op) / (static_cast<double>(kAssumedTflops) * 1e12);
  });
  const TimedStep step = timed_step(programs, prices, /*wire=*/{});
  order.step_s = 1e-12 * static_cast<double>(step.length_ps);
  for (const RankTime& rank : step.ranks)
    order.busy_s +=
        1e-12 * static_cast<double>(rank.computed_ps) / static_cast<double>(programs.size());
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
