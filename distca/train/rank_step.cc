#include "distca/train/rank_step.h"

namespace distca {

double add_ranks(const std::vector<RankStep>& ranks, StepMetrics* metrics) {
  double loss_sum = 0;
  for (const RankStep& rank : ranks) {
    loss_sum += rank.loss_sum;
    metrics->bytes += rank.bytes;
    metrics->bytes_between_nodes += rank.bytes_between_nodes;
    metrics->attention_s.push_back(rank.attention_s);
    metrics->memory.push_back(rank.memory);
    metrics->ranks.push_back(rank.sample);
  }
  return loss_sum;
}

}  // namespace distca
