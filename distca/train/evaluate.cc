#include "distca/train/evaluate.h"

namespace distca {

std::optional<PositionLosses> evaluate(Step& step, size_t num_batches,
                                       const std::function<std::optional<PlannedBatch>()>& next,
                                       Communicator& comm) {
  PositionLosses losses;
  for (size_t i = 0; i < num_batches; ++i) {
    const std::optional<PlannedBatch> planned = next();
    if (!planned) return {};
    // One after the other: how many are played together makes no difference to the bits.
    for (const PositionLosses& more : step.evaluate(planned->input).losses) losses += more;
  }
  sum_over_ranks(comm, losses);
  return losses;
}

}  // namespace distca
