// Core attention on an H200, from published figures (paper Fig. 5): for planning without the
// machine at hand.

#include "distca/cost/attention_profile.h"

namespace distca {
namespace {

constexpr int64_t kTileQueries = 128;  // rows of FlashAttention 2's tiles at head_dim 128
constexpr int64_t kLongest = 524288;   // 512K
// Forward TFLOPS on one H200 by a shard's queries; FlashAttention 2, 4 heads on 1 key head (Fig.
// 5).
struct Rate {
  int64_t queries, tflops;
};
constexpr Rate kForwardRates[] = {{128, 285}, {256, 295}, {512, 305}, {1024, 307}, {2048, 310}};
// Backward does 5 products for forward's 2, at about 4/5 of its rate: our assumption from what
// FlashAttention 2 reaches elsewhere; the paper publishes none.
constexpr int64_t kBackwardRatePercent = 80;

int64_t forward_tflops(int64_t queries) {
  int64_t tflops = kForwardRates[0].tflops;
  for (const Rate& rate : kForwardRates) {
    if (rate.queries <= queries) tflops = rate.tflops;
  }
  return tflops;
}

}  // namespace

AttentionProfile h200_profile() {
  AttentionProfile profile{
      .machine = "NVIDIA H200 (analytic)",
      .path = "analytic",
      .shape = {.num_heads = 4, .num_kv_heads = 1, .head_dim_qk = 128, .head_dim_v = 128}};
  for (int64_t tokens = kTileQueries; tokens <= kLongest; tokens *= 2) {
    profile.q_tokens.push_back(tokens);
    profile.kv_tokens.push_back(tokens);
  }
  const AttentionShape& shape = profile.shape;
  const int64_t pair_flops = 2 * shape.num_heads * (shape.head_dim_qk + shape.head_dim_v);
  for (const int64_t q : profile.q_tokens) {
    for (const int64_t kv : profile.kv_tokens) {
      // Tiles on the diagonal are computed whole.
      const int64_t pairs = q > kv ? 0 : q * (kv - (q - kTileQueries) / 2);
      const int64_t rate = forward_tflops(q) * 1000;  // FLOPs a ns
      const int64_t backward_rate = rate * kBackwardRatePercent / 100;
      profile.forward_ns.push_back(ceil_div(pairs * pair_flops, rate));
      profile.backward_ns.push_back(ceil_div(pairs * pair_flops * 5 / 2, backward_rate));
    }
  }
  return profile;
}

}  // namespace distca
