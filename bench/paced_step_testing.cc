#include "bench/paced_step_testing.h"

#include <fmt/format.h>

#include <cmath>

#include "distca/base/error.h"
#include "distca/cost/attention_shape.h"
#include "distca/program/overlap.h"

namespace distca::bench {
namespace {

/// By default, messages are small: what is measured is order and waits.
AttentionShape shape_of(const PacedSetting& setting) {
  return {.num_heads = 1,
          .num_kv_heads = 1,
          .head_dim_qk = setting.head_dim,
          .head_dim_v = setting.head_dim,
          .type = ScalarType::kBFloat16};
}

constexpr double kMedianTokens = 1024;  // median length of a document

/// The time of both passes in units of forward: linear work's backward takes twice the time of its
/// forward, attention's 2.5 times.
constexpr double kLinearPasses = 3, kAttentionPasses = 3.5;
/// The share of a layer's linear work that lies before attention: norm, QKV and RoPE. The rest,
/// with the MLP, lies behind it.
constexpr double kBeforeAttention = 0.3;

int64_t rounded(double value) { return static_cast<int64_t>(std::llround(value)); }

PipelineStepRequest step_of(const PacedSetting& setting, PipelineArm arm) {
  const BatchLengths lengths = paced_lengths(setting);
  const PacedPrices prices = paced_prices(setting, lengths);
  return step_request(
      arm, {.grid = {.stages = setting.stages, .replicas = setting.replicas},
            .layers = setting.layers,
            .lengths = arm == PipelineArm::kHomePairs ? paired(lengths) : lengths,
            .shape = shape_of(setting),
            .speed = {.linear_ps_per_token =
                          rounded(kLinearPasses * prices.token_s * setting.layers * 1e12),
                      .attention_ps_per_kload =
                          rounded(kAttentionPasses * prices.pair_s * setting.layers * 1e15)},
            .ends = {},
            .bytes_per_us = setting.bytes_per_us,
            .fill_ticks = setting.fill_ticks});
}

}  // namespace

std::string PacedSetting::name() const {
  return fmt::format("P = {}, M = {}, attention {:.2f}{}", stages, micro_batches, attention_share,
                     replicas > 1 ? fmt::format(", {} replicas", replicas) : "");
}

const char* arm_name(PipelineArm arm) { return kPipelineArms[static_cast<size_t>(arm)]; }

BatchLengths paced_lengths(const PacedSetting& setting) {
  return uneven_lengths(2 * setting.micro_batches, setting.tokens * setting.replicas, kMedianTokens,
                        /*seed=*/1);
}

PacedPrices paced_prices(const PacedSetting& setting, const BatchLengths& lengths) {
  DISTCA_CHECK(setting.attention_share > 0 && setting.attention_share < 1, "a share of {}",
               setting.attention_share);
  const double token_s = setting.linear_s / static_cast<double>(setting.tokens);
  const double linear = kLinearPasses * token_s * static_cast<double>(num_tokens(lengths));
  const double attention = linear * setting.attention_share / (1 - setting.attention_share);
  return {.token_s = token_s,
          .pair_s = attention / kAttentionPasses / static_cast<double>(num_pairs(lengths))};
}

PacedStep::PacedStep(const PacedSetting& setting, PipelineArm arm)
    : prices_(paced_prices(setting, paced_lengths(setting))),
      layers_(setting.layers),
      parts_(step_of(setting, arm)) {}

Program PacedStep::program(int rank) const {
  const PipelineRequest& request = parts_.request();
  const AttentionShape& shape = request.shape;
  const PipelineParts::Format format{
      .types = exchange_types(shape.type, /*wide_gradients=*/false),
      .row_bytes = shape.q_token_bytes()};  // a row is as wide as all heads
  return build_program(
      {.overlap = Overlap::kPingPong,
       .model = {.num_layers = int64_t{layers_} * request.grid.stages, .attention = shape},
       .stage = parts_.part(rank, format)});
}

std::vector<Program> PacedStep::programs() const {
  std::vector<Program> all;
  for (int rank = 0; rank < parts_.grid().num_ranks(); ++rank) all.push_back(program(rank));
  return all;
}

double PacedStep::seconds(int rank, const Op& op) const {
  // The part of backward that a phase does not leave is as long as forward, and so is a layer's
  // weight gradient.
  const bool is_short =
      op.pass == Pass::kForward || op.leaves_weights || op.kind == OpKind::kWeightGradient;
  const double passes = is_short ? 1 : kLinearPasses - 1;
  const auto linear = [&](double share) {
    const Layout& home = parts_.request().homes[op.nano_batch];
    const auto tokens = static_cast<double>(home.num_tokens(parts_.grid().replica(rank)));
    return share * passes * prices_.token_s * tokens;
  };
  switch (op.kind) {
    case OpKind::kPreAttention:
      return linear(kBeforeAttention);
    case OpKind::kPostAttention:
      return linear(1 - kBeforeAttention);
    case OpKind::kWeightGradient:
      return linear(1);
    case OpKind::kCoreAttention: {  // the FLOPs of backward are 2.5 times as many
      const AttentionShape& shape = parts_.request().shape;
      return prices_.pair_s * op.flops /
             static_cast<double>(2 * shape.num_heads * (shape.head_dim_qk + shape.head_dim_v));
    }
    default:
      return 0;
  }
}

double PacedStep::busy_seconds() const {
  double seconds = 0;
  for (int rank = 0; rank < parts_.grid().num_ranks(); ++rank) {
    for (const Op& op : program(rank).ops) seconds += this->seconds(rank, op);
  }
  return seconds / parts_.grid().num_ranks();
}

}  // namespace distca::bench
