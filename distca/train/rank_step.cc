#include "distca/train/rank_step.h"

#include "distca/train/speed_sample.h"

namespace distca {

RankStep rank_step(const Config& config, const StepResult& result, const PlannedBatch& planned,
                   const MemoryMeter& memory, const WorkerWeights* weights) {
  return {.loss_sum = result.loss_sum,
          .grad_norm = result.sum.norm,
          .bytes = result.bytes,
          .bytes_tensor = result.bytes_tensor,
          .bytes_between_nodes = planned.bytes_between_nodes,
          .attention_s = config.attention_has_one_thread()
                             ? result.times.processor_of(OpKind::kCoreAttention)
                             : result.times.of(OpKind::kCoreAttention),
          .memory = {.now_bytes = memory.bytes(),
                     .peak_bytes = memory.peak_bytes(),
                     .resident_bytes = resident_peak_bytes(),
                     .weight_copy_bytes = weights ? weights->model.copy_bytes() : 0,
                     .optimizer_bytes = weights ? weights->optimizer.state_bytes() : 0},
          .sample = rank_sample(result.times, planned.work.tokens, planned.work.load)};
}

double add_ranks(const std::vector<RankStep>& ranks, StepMetrics* metrics) {
  double loss_sum = 0;
  for (const RankStep& rank : ranks) {
    loss_sum += rank.loss_sum;
    metrics->bytes += rank.bytes;
    metrics->bytes_tensor += rank.bytes_tensor;
    metrics->bytes_between_nodes += rank.bytes_between_nodes;
    metrics->attention_s.push_back(rank.attention_s);
    metrics->memory.push_back(rank.memory);
    metrics->ranks.push_back(rank.sample);
  }
  return loss_sum;
}

}  // namespace distca
