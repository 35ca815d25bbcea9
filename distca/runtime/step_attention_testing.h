#pragma once
// For tests: core attention alone, played by a program of any schedule: Q, K, V and dO are given
// where a model's phases would compute them. Include <ATen/ATen.h> before it.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "distca/kernels/rows.h"
#include "distca/program/overlap.h"
#include "distca/runtime/executor.h"
#include "distca/runtime/step_attention.h"

namespace distca::testing {

/// One layer of one nano-batch on one rank: [local tokens, heads, dim].
struct AttentionLayer {
  at::Tensor q, k, v, d_o;   // in; d_o: undefined where there is no backward
  at::Tensor o, dq, dk, dv;  // out
};
using AttentionLayers = std::vector<std::vector<AttentionLayer>>;  // [nano-batch][layer]

struct AttentionStyle {
  Overlap overlap = Overlap::kNone;
  bool redispatched = false;
  bool wide_gradients = false;  // dQ, dK, dV travel in the accumulator's type
  bool backward = true;
  int64_t window_left = -1;
  Program (*build)(const ProgramRequest& request) = build_program;
};

/// The program of a rank with its part of each nano-batch. A rank that only serves has as many
/// layers as the others.
inline Program attention_program(const std::vector<RankExchange>& exchanges,
                                 const AttentionStyle& style, const kernels::Shape& shape,
                                 ScalarType type, int num_layers, bool holds_weights) {
  ProgramRequest request{
      .overlap = style.overlap,
      .kind = style.backward ? ProgramRequest::Kind::kTrain : ProgramRequest::Kind::kEvaluate,
      .holds_weights = holds_weights,
      .least_share_pairs = 1 << 12};
  request.model.num_layers = num_layers;
  request.model.attention = {.num_heads = shape.num_heads,
                             .num_kv_heads = shape.num_kv_heads,
                             .head_dim_qk = shape.head_dim_qk,
                             .head_dim_v = shape.head_dim_v,
                             .type = type,
                             .mask = {.window_left = style.window_left}};
  for (const RankExchange& rows : exchanges) {
    request.nano_batches.push_back(
        {.exchange = std::make_shared<const AttentionExchange>(make_attention_exchange(
             rows, request.model.attention, exchange_types(type, style.wide_gradients))),
         .redispatched = style.redispatched});
  }
  return style.build(request);
}

class AttentionPlayer final : public OpPlayer {
 public:
  AttentionPlayer(const Program& program, AttentionKernel& kernel, Communicator& comm,
                  const ExchangeBuffers& buffers, AttentionLayers& layers)
      : layers_(layers), attention_(program, kernel, comm, buffers) {}

  void play(const Op& op) override {
    if (op.kind == OpKind::kCoreAttention) return attention_.compute(op);
    if (op.nano_batch < 0 || op.layer < 0) return;  // nothing of core attention
    AttentionLayer& layer = layers_[op.nano_batch][op.layer];
    const bool forward = op.pass == Pass::kForward;
    if (op.kind == OpKind::kPreAttention && forward) {
      attention_.set_qkv(op.nano_batch, op.layer, layer.q, layer.k, layer.v);
    } else if (op.kind == OpKind::kPostAttention && forward) {
      layer.o = attention_.o(op.nano_batch, op.layer);
    } else if (op.kind == OpKind::kPostAttention) {
      attention_.set_d_o(op.nano_batch, op.layer, layer.d_o);
    } else if (op.kind == OpKind::kPreAttention) {
      std::tie(layer.dq, layer.dk, layer.dv) = attention_.take_gradients(op.nano_batch, op.layer);
    }
  }
  void pack(const Op& op) override {
    if (is_of_attention(op)) attention_.pack(op);
  }
  void issue(const Op& op) override {
    if (is_of_attention(op)) attention_.issue(op);
  }
  void wait(const Op& op) override {
    if (is_of_attention(op)) attention_.wait(op);
  }
  void land(const Op& op) override {
    if (is_of_attention(op)) attention_.land(op);
  }
  void wait_sent(const Op& op) override {
    if (is_of_attention(op)) attention_.wait_sent(op);
  }

  const ExchangeBytes& bytes() const { return attention_.bytes(); }

 private:
  /// The inputs of all layers are given, so stages send each other nothing.
  static bool is_of_attention(const Op& op) { return op.kind != OpKind::kP2p; }

  AttentionLayers& layers_;
  StepAttention attention_;
};

/// Plays one step of one rank, and puts what comes out into `layers`. They say how many layers
/// there are. A rank that only serves has as many as the others, whose tensors are not read.
inline ExchangeBytes play_attention(const std::vector<RankExchange>& exchanges,
                                    const AttentionStyle& style, AttentionKernel& kernel,
                                    Communicator& comm, ExchangeBuffers& buffers,
                                    AttentionLayers& layers, bool holds_weights = true,
                                    TraceRecorder* recorder = nullptr) {
  const Program program = attention_program(exchanges, style, kernel.shape(), kernel.type(),
                                            static_cast<int>(layers.at(0).size()), holds_weights);
  buffers.prepare(program);
  AttentionPlayer player(program, kernel, comm, buffers, layers);
  OpTimes times;
  distca::play(program, player, &times, recorder);
  return player.bytes();
}

/// Q, K, V, dO in; O, dQ, dK, dV out: [document] [length, heads, dim].
using PerDocument = std::vector<at::Tensor>;

/// Bytes, where at::equal takes -0 for 0.
inline bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

/// The largest |a - b| / |b| of 128 rows (root of the sum of squares), over the rows of all
/// documents; NaN where a row was not written. Parts have a scale each: the last of 1000 queries
/// has a far smaller O than the first.
inline double difference(const PerDocument& a, const PerDocument& b) {
  const at::Tensor want = at::cat(b).to(at::kDouble), gap = at::cat(a).to(at::kDouble) - want;
  std::vector<at::Tensor> blocks;
  for (int64_t row = 0; row < want.size(0); row += kBlockTokens) {
    const int64_t rows = std::min(kBlockTokens, want.size(0) - row);
    blocks.push_back(gap.narrow(0, row, rows).norm() / want.narrow(0, row, rows).norm());
  }
  return at::stack(blocks).max().item<double>();  // keeps NaN
}

/// Two runs that round differently: a value is rounded to the format up to 16 times on both sides
/// (P, O of a key tile, of a task, of a server, of the row; backward the like), by less than half
/// the unit roundoff in root mean square; over the rows of a key tile roundings at random add up to
/// their root. Sums over at most `longest` rows are in fp32, but that ATen's bf16 backward adds to
/// bf16 gradients after every 32 queries.
struct Bounds {
  double forward;
  double backward;
};
inline Bounds bounds_of(ScalarType dtype, int64_t longest) {
  if (dtype == ScalarType::kFloat64) return {1e-10, 1e-10};
  const double fp32 = 0x1p-24, rounding = (dtype == ScalarType::kFloat32 ? fp32 : 0x1p-8) / 2;
  const auto rows = static_cast<double>(longest);
  const double sums = std::sqrt(rows) * fp32;
  return {std::sqrt(16.0) * rounding + sums, std::sqrt(16 + rows / 32) * rounding + sums};
}

}  // namespace distca::testing
