#pragma once
// The settings of bench/pipeline: pipelines of two stages that compute. Needs no PyTorch.
// Plain values; any thread may call the functions.

#include <array>
#include <cstdint>

#include "bench/pipeline_setup.h"
#include "distca/model/llama_config.h"

namespace distca::bench {

inline constexpr int kRealStages = 2, kRealMicroBatches = 4;

/// The work of a step. The MLP's width decides how much of it is core attention.
struct RealSetting {
  const char* name;
  int64_t layers;  // layers of a stage
  int64_t intermediate_size;
  int64_t tokens;        // tokens of a nano-batch
  double median_tokens;  // median length of a document
  bool judged;
};
inline constexpr std::array kRealSettings{
    RealSetting{"attention over 0.40", 2, 128, 4096, 2048, true},
    RealSetting{"attention near 0.25", 2, 640, 4096, 768, false}};

LlamaConfig real_model(const RealSetting& setting);
/// The documents of one of the batches that rounds take in turn, from 0.
BatchLengths real_batch(const RealSetting& setting, int batch);

/// The ways to play a batch, which are compared.
enum RealWay : size_t {
  kOurs,
  kAgain,
  kWaits1,
  kWaits2,
  kPaper,
  kPairs,
  kSingles,
  kEvenPacked,
  kWays
};
inline constexpr std::array<const char*, kWays> kWayNames{
    "aligned, whole even",       "aligned, whole even, again",    "aligned, 1 outstanding",
    "aligned, 2 outstanding",    "aligned, attention even",       "1F1B, pairs",
    "1F1B, single nano-batches", "1F1B, documents packed by work"};

/// Medians over some steps and means over the ranks, rounded: the same on all of them.
struct MeasuredSpeeds {
  RankSpeed speed;
  std::array<double, 2> linear_ns{}, attention_ns{};  // [pass] of a token, of a thousand pairs
  std::array<EmbeddingHeadTime, kRealStages> ends{};
  int64_t bytes_per_us = 0;  // that a rank sends while nothing is computed
};

PipelineParts real_parts(RealWay way, const LlamaConfig& model, const BatchLengths& batch,
                         const MeasuredSpeeds& speeds);

}  // namespace distca::bench
