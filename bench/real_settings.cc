#include "bench/real_settings.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace distca::bench {
namespace {

constexpr int64_t kRealTolerancePpm = 2'000;  // between processes of one machine, bytes are cheap

PipelineArm arm_of(RealWay way) {
  constexpr std::array<PipelineArm, kWays> kArms{
      PipelineArm::kWholeEven,   PipelineArm::kWholeEven,     PipelineArm::kWaits1,
      PipelineArm::kWaits2,      PipelineArm::kAttentionEven, PipelineArm::kHomePairs,
      PipelineArm::kHomeSingles, PipelineArm::kHomeSingles};
  return kArms[way];
}

/// The documents of a batch in as many nano-batches of even work: the longest first, each where
/// least is.
BatchLengths packed_by_work(const BatchLengths& batch, const RankSpeed& speed) {
  std::vector<int64_t> documents;
  for (const std::vector<int64_t>& nano : batch)
    documents.insert(documents.end(), nano.begin(), nano.end());
  std::ranges::sort(documents, std::greater());
  BatchLengths packed(batch.size());
  std::vector<double> work(batch.size());
  for (const int64_t length : documents) {
    const auto least = std::ranges::min_element(work) - work.begin();
    const auto tokens = static_cast<double>(length);
    packed[least].push_back(length);
    work[least] += tokens * static_cast<double>(speed.linear_ps_per_token) +
                   tokens * (tokens + 1) / 2e3 * static_cast<double>(speed.attention_ps_per_kload);
  }
  return packed;
}

BatchLengths lengths_of(RealWay way, const BatchLengths& batch, const RankSpeed& speed) {
  if (way == kPairs) return paired(batch);
  return way == kEvenPacked ? packed_by_work(batch, speed) : batch;
}

}  // namespace

LlamaConfig real_model(const RealSetting& setting) {
  return {.vocab_size = 256,
          .hidden_size = 128,
          .intermediate_size = setting.intermediate_size,
          .num_hidden_layers = setting.layers * kRealStages,
          .num_attention_heads = 2,
          .num_key_value_heads = 1,
          .head_dim = 64};
}

BatchLengths real_batch(const RealSetting& setting, int batch) {
  return uneven_lengths(2 * kRealMicroBatches, setting.tokens, setting.median_tokens,
                        static_cast<uint64_t>(batch + 1));
}

PipelineParts real_parts(RealWay way, const LlamaConfig& model, const BatchLengths& batch,
                         const MeasuredSpeeds& speeds) {
  return PipelineParts(step_request(arm_of(way), {.grid = {.stages = kRealStages},
                                                  .layers = model.num_hidden_layers / kRealStages,
                                                  .lengths = lengths_of(way, batch, speeds.speed),
                                                  .shape = model.shape().attention,
                                                  .speed = speeds.speed,
                                                  .ends = {speeds.ends.begin(), speeds.ends.end()},
                                                  .bytes_per_us = speeds.bytes_per_us,
                                                  .tolerance_ppm = kRealTolerancePpm}));
}

}  // namespace distca::bench
