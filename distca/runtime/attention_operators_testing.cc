// For tests: ATen's CUDA attention operators as CPU kernels, registered in a program that this
// source is linked into. They check what the CUDA kernels check, then compute what those compute, a
// sequence at a time through the matmul path, so that all our code around the operators runs
// without a device. What a kernel leaves unwritten is not a number.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "distca/base/integers.h"
#include "distca/kernels/attention.h"
#include "distca/runtime/aten_attention.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {
namespace {

using MaybeTensor = std::optional<at::Tensor>;
using MaybeSize = std::optional<int64_t>;

ScalarType our_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? ScalarType::kBFloat16 : ScalarType::kFloat32;
}

/// Queries [first, first + queries) and keys [start, start + keys) of packed rows; the last of both
/// are at one position.
struct OneSequence {
  int64_t first, queries, start, keys;
  int64_t window_left, window_right;  // -1 = unlimited

  kernels::Mask mask() const {
    return {.causal = false, .window_left = window_left, .window_right = window_right};
  }
  kernels::Task task() const {
    return {.q_row = first,
            .q_tokens = queries,
            .q_position = keys,
            .keys = {{.row = start, .tokens = keys, .position = queries}},
            .mask = mask()};
  }
  static kernels::Shape shape(const at::Tensor& q, const at::Tensor& k, double scale) {
    return {.num_heads = q.size(1),
            .num_kv_heads = k.size(1),
            .head_dim_qk = q.size(2),
            .head_dim_v = q.size(2),
            .softmax_scale = scale};
  }
  /// o like q, lse [rows, heads, 1].
  void forward(double scale, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const at::Tensor& o, const at::Tensor& lse) const {
    const kernels::TaskList list{
        .queries = {{.tokens = q.size(0), .q = rows_of(q), .o = rows_of(o), .lse = rows_of(lse)}},
        .keys = {{.tokens = k.size(0), .k = rows_of(k), .v = rows_of(v)}},
        .tasks = {task()}};
    aten_matmul_forward(shape(q, k, scale), our_type(q), list, -1);
  }
  /// dq, dk, dv in fp32, added to; lse and delta [rows, heads, 1].
  void backward(double scale, const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& delta, const at::Tensor& lse,
                const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv) const {
    const kernels::TaskList list{.queries = {{.tokens = q.size(0),
                                              .q = rows_of(q),
                                              .lse = rows_of(lse),
                                              .d_o = rows_of(d_o),
                                              .delta = rows_of(delta),
                                              .dq = rows_of(dq)}},
                                 .keys = {{.tokens = k.size(0),
                                           .k = rows_of(k),
                                           .v = rows_of(v),
                                           .dk = rows_of(dk),
                                           .dv = rows_of(dv)}},
                                 .tasks = {task()}};
    aten_matmul_backward(shape(q, k, scale), our_type(q), list, -1);
  }
};

at::Tensor delta_of(const at::Tensor& d_o, const at::Tensor& o) {
  return (d_o.to(at::kFloat) * o.to(at::kFloat)).sum(-1, /*keepdim=*/true);
}

// --- FlashAttention ------------------------------------------------------------------------------

/// The numbers of a variable-length call, as the operator reads them.
class FlashCall {
 public:
  FlashCall(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
            const at::Tensor& cu_seqlens_q, const at::Tensor& cu_seqlens_k, int64_t max_q,
            int64_t max_k, bool causal, MaybeSize left, MaybeSize right)
      : window_left_(left.value_or(-1)),
        window_right_(right.value_or(-1)),
        max_q_(max_q),
        max_k_(max_k) {
    for (const at::Tensor& rows : {q, k, v}) {
      TORCH_CHECK(rows.scalar_type() == at::kBFloat16 || rows.scalar_type() == at::kHalf,
                  "FlashAttention only support fp16 and bf16 data type");
      TORCH_CHECK(rows.dim() == 3 && rows.stride(2) == 1 && rows.size(2) == q.size(2) &&
                      rows.size(2) % 8 == 0 && rows.size(2) <= 256,
                  "shape");
      TORCH_CHECK(reinterpret_cast<uintptr_t>(rows.data_ptr()) % 16 == 0 &&
                      rows.stride(0) % 8 == 0 && rows.stride(1) % 8 == 0,
                  "128-bit loads");
    }
    TORCH_CHECK(k.sizes() == v.sizes() && q.size(1) % k.size(1) == 0);
    TORCH_CHECK(max_q > 1, "single queries go another way");
    starts_q_ = list(cu_seqlens_q, cu_seqlens_q.numel());
    starts_k_ = list(cu_seqlens_k, cu_seqlens_q.numel());
    TORCH_CHECK(starts_q_.front() == 0 && starts_q_.back() == q.size(0));
    if (causal) window_right_ = 0;
    if (window_left_ >= max_k) window_left_ = -1;
    if (window_right_ >= max_k) window_right_ = -1;
    if (window_left_ < 0 && window_right_ > 0) window_left_ = max_k;
    if (window_left_ >= 0 && window_right_ < 0) window_right_ = max_k;
  }
  static std::vector<int32_t> list(const at::Tensor& numbers, int64_t size) {
    TORCH_CHECK(numbers.scalar_type() == at::kInt && numbers.is_contiguous());
    TORCH_CHECK(numbers.dim() == 1 && numbers.numel() == size);
    const auto* data = numbers.const_data_ptr<int32_t>();
    return {data, data + size};
  }
  int64_t sequences() const { return static_cast<int64_t>(starts_q_.size()) - 1; }
  /// Without `used`: keys up to where the next sequence's begin.
  OneSequence sequence(int64_t b, std::optional<int64_t> used, const at::Tensor& k) const {
    const OneSequence s{starts_q_[b], starts_q_[b + 1] - starts_q_[b],
                        starts_k_[b], used.value_or(starts_k_[b + 1] - starts_k_[b]),
                        window_left_, window_right_};
    TORCH_CHECK(s.start >= 0 && s.keys >= 0 && s.start + s.keys <= k.size(0));
    TORCH_CHECK(s.queries <= max_q_ && (s.queries == 0 || s.keys <= max_k_), "beyond the grid");
    return s;
  }

 private:
  std::vector<int32_t> starts_q_, starts_k_;
  int64_t window_left_, window_right_, max_q_, max_k_;
};

/// Boxed: versions of PyTorch differ in the arguments behind seqused_k.
void flash_forward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  constexpr size_t kSeqused = 13;
  const std::vector<c10::IValue> in(stack->begin(), stack->end());
  stack->clear();
  TORCH_CHECK(in.size() > kSeqused && in[7].toDouble() == 0 && !in[9].toBool());
  for (size_t i = kSeqused + 1; i < in.size(); ++i) TORCH_CHECK(in[i].isNone());
  const at::Tensor &q = in[0].toTensor(), &k = in[1].toTensor(), &v = in[2].toTensor();
  const FlashCall call(q, k, v, in[3].toTensor(), in[4].toTensor(), in[5].toInt(), in[6].toInt(),
                       in[8].toBool(), in[11].toOptional<int64_t>(), in[12].toOptional<int64_t>());
  const std::vector<int32_t> used = FlashCall::list(in[kSeqused].toTensor(), call.sequences());
  const at::Tensor o = at::full(q.sizes(), NAN, q.options());
  at::Tensor lse = at::full({q.size(0), q.size(1), 1}, NAN, q.options().dtype(at::kFloat));
  for (int64_t b = 0; b < call.sequences(); ++b) {
    call.sequence(b, used[b], k).forward(in[10].toDouble(), q, k, v, o, lse);
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  lse.masked_fill_(lse == -kInfinity, kInfinity);  // a row without keys
  const at::Tensor none;
  for (const at::Tensor& out : {o, lse.squeeze(-1).t().contiguous(), none, none, none}) {
    stack->emplace_back(out);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& o, const at::Tensor& lse, const at::Tensor& cu_seqlens_q,
    const at::Tensor& cu_seqlens_k, int64_t max_q, int64_t max_k, double dropout, bool causal,
    const at::Tensor&, const at::Tensor&, std::optional<double> scale, MaybeSize left,
    MaybeSize right) {
  const FlashCall call(q, k, v, cu_seqlens_q, cu_seqlens_k, max_q, max_k, causal, left, right);
  TORCH_CHECK(dropout == 0 && d_o.sizes() == q.sizes() && o.sizes() == q.sizes());
  TORCH_CHECK(d_o.scalar_type() == q.scalar_type() && o.scalar_type() == q.scalar_type());
  TORCH_CHECK(lse.is_contiguous() && lse.scalar_type() == at::kFloat);
  TORCH_CHECK(lse.size(0) == q.size(1) && lse.size(1) == q.size(0));
  const auto sums = q.options().dtype(at::kFloat);
  const at::Tensor delta = delta_of(d_o, o), numbers = lse.t().unsqueeze(-1).contiguous();
  const at::Tensor dq = at::zeros(q.sizes(), sums);
  const at::Tensor dk = at::full(k.sizes(), NAN, sums), dv = at::full(v.sizes(), NAN, sums);
  for (int64_t b = 0; b < call.sequences(); ++b) {
    const OneSequence s = call.sequence(b, std::nullopt, k);
    dk.narrow(0, s.start, s.keys).zero_(), dv.narrow(0, s.start, s.keys).zero_();
    s.backward(*scale, d_o, q, k, v, delta, numbers, dq, dk, dv);
  }
  const auto type = q.scalar_type();
  return {dq.to(type), dk.to(type), dv.to(type)};
}

// --- efficient attention -------------------------------------------------------------------------

constexpr int64_t kLseTile = 32;

/// One sequence a member of the batch; tensors [batch, tokens, heads, dim].
OneSequence whole_member(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         int64_t mask_type) {
  TORCH_CHECK(q.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0));
  TORCH_CHECK(q.size(2) == k.size(2) && q.size(3) == k.size(3), "heads");
  TORCH_CHECK(q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1);
  TORCH_CHECK(mask_type == 0 || mask_type == 2);
  return {0, q.size(1), 0, k.size(1), -1, mask_type == 2 ? 0 : -1};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt>
efficient_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const MaybeTensor& bias, const MaybeTensor& cu_seqlens_q,
                  const MaybeTensor& cu_seqlens_k, MaybeSize, MaybeSize, double dropout,
                  int64_t mask_type, bool with_lse, std::optional<double> scale,
                  const MaybeTensor& seqlen_k, MaybeSize window) {
  TORCH_CHECK(!bias && !cu_seqlens_q && !cu_seqlens_k && !seqlen_k && !window);
  TORCH_CHECK(dropout == 0 && with_lse);
  const OneSequence s = whole_member(q, k, v, mask_type);
  const at::Tensor o = at::full(q.sizes(), NAN, q.options());
  const at::Tensor lse = at::full({q.size(0), q.size(2), round_up(q.size(1), kLseTile)},
                                  std::numeric_limits<double>::infinity(), q.options());
  for (int64_t b = 0; b < q.size(0); ++b) {
    const at::Tensor numbers = at::empty({q.size(1), q.size(2), 1}, q.options());
    s.forward(*scale, q[b], k[b], v[b], o[b], numbers);
    lse[b].narrow(1, 0, q.size(1)).copy_(numbers.squeeze(-1).t());
  }
  return {o, lse, {}, {}, c10::SymInt(q.size(1)), c10::SymInt(k.size(1))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_backward(
    const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const MaybeTensor& bias, const at::Tensor& o, const MaybeTensor& cu_seqlens_q,
    const MaybeTensor& cu_seqlens_k, int64_t max_q, int64_t max_k, const at::Tensor& lse,
    double dropout, const at::Tensor&, const at::Tensor&, int64_t mask_type, bool bias_gradient,
    std::optional<double> scale, MaybeSize, MaybeSize window, bool) {
  TORCH_CHECK(!bias && !bias_gradient && !cu_seqlens_q && !cu_seqlens_k && !window);
  TORCH_CHECK(dropout == 0 && max_q == q.size(1) && max_k == k.size(1));
  TORCH_CHECK(d_o.sizes() == q.sizes() && o.sizes() == q.sizes() && o.is_contiguous());
  TORCH_CHECK(lse.dim() == 3 && lse.size(2) == round_up(q.size(1), kLseTile));
  TORCH_CHECK(lse.narrow(2, q.size(1), lse.size(2) - q.size(1)).isinf().all().item<bool>());
  const OneSequence s = whole_member(q, k, v, mask_type);
  const at::Tensor dq = at::zeros(q.sizes(), q.options());
  const at::Tensor dk = at::zeros(k.sizes(), q.options()), dv = at::zeros(v.sizes(), q.options());
  for (int64_t b = 0; b < q.size(0); ++b) {
    const at::Tensor numbers = lse[b].narrow(1, 0, q.size(1)).t().unsqueeze(-1).contiguous();
    const at::Tensor gradient = d_o[b].contiguous();
    s.backward(*scale, gradient, q[b], k[b], v[b], delta_of(gradient, o[b]), numbers, dq[b], dk[b],
               dv[b]);
  }
  return {dq, dk, dv, {}};
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_flash_attention_forward", torch::CppFunction::makeFromBoxedFunction<&flash_forward>());
  m.impl("_flash_attention_backward", TORCH_FN(flash_backward));
  m.impl("_efficient_attention_forward", TORCH_FN(efficient_forward));
  m.impl("_efficient_attention_backward", TORCH_FN(efficient_backward));
}

}  // namespace
}  // namespace distca
