#pragma once
// The orders in which a pipeline may be played, compared for one batch before anything runs: what a
// step is predicted to take, and the memory of the rank that needs most.
//
//     for (const OrderForecast& order : compare_orders(config, batch, num_workers))
//       fmt::print("{} {:.3f} s\n", order.step_s, order.schedule);
//
// Any thread may call the function.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/config/config.h"

namespace distca {

struct OrderForecast {
  std::string refused;             // why it cannot be planned; then the figures are 0
  std::string schedule;            // parallel.pipeline_schedule
  int64_t outstanding = 0;         // parallel.outstanding_weight_gradients
  double step_s = 0;               // end of the last rank, by prices, if messages take no time
  double busy_s = 0;               // the prices of all operations over the ranks
  int nano_batches_in_flight = 0;  // at most, on the rank with most
  double peak_bytes = 0;  // the most bytes of tensors that a rank holds (forecast/memory_peak.h)
};

/// One line for each schedule that the configuration allows, with 0, 1 and 2 outstanding weight
/// gradients and with the configuration's own number, which all else is taken from. Prices: matrix
/// products and core attention at kAssumedTflops; ignores all else that an operation does, and
/// exchanges. The run must have a pipeline (CHECK).
std::vector<OrderForecast> compare_orders(const Config& config, const Batch& batch,
                                          int num_workers);

}  // namespace distca
