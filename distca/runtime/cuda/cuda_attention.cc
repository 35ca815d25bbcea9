#include "distca/runtime/cuda/cuda_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "distca/base/integers.h"
#include "distca/runtime/aten_attention.h"
#include "distca/runtime/cuda/flash4_operator.h"
#include "distca/runtime/cuda/varlen_attention.h"

namespace distca {
namespace {

using kernels::Shape;
using kernels::TaskList;
using kernels::VarlenLaunch;

// --- FlashAttention ------------------------------------------------------------------------------

class FlashOperator final : public VarlenOperator {
 public:
  explicit FlashOperator(double softmax_scale) : softmax_scale_(softmax_scale) {}

  std::pair<at::Tensor, at::Tensor> forward(const LaunchInput& input,
                                            const at::Tensor& /*place*/) const override {
    const auto& [launch, lists, q, k, v] = input;
    const Numbers n(launch, lists);
    auto result = at::_flash_attention_forward(
        q, k, v, n.cu_seqlens_q, n.key_starts, n.max_queries, launch.max_keys,
        /*dropout_p=*/0.0, n.causal, /*return_debug_mask=*/false, softmax_scale_, n.window_left,
        n.window_right, n.keys_used);
    return {std::get<0>(result), std::get<1>(result)};
  }

  std::array<at::Tensor, 3> backward(const LaunchInput& input,
                                     const OutputGradient& of_o) const override {
    const auto& [launch, lists, q, k, v] = input;
    const Numbers n(launch, lists);
    // The state of a random generator, which is read with a dropout alone: any memory will do.
    if (!no_random_.defined()) no_random_ = at::empty({2}, q.options().dtype(at::kUInt64));
    const auto [dq, dk, dv] =
        at::_flash_attention_backward(of_o.d_o, q, k, v, of_o.o, of_o.lse, n.cu_seqlens_q,
                                      n.key_starts, n.max_queries, launch.max_keys,
                                      /*dropout_p=*/0.0, n.causal, no_random_, no_random_,
                                      softmax_scale_, n.window_left, n.window_right);
    return {dq, dk, dv};
  }

 private:
  /// The launch in the operator's words.
  struct Numbers {
    Numbers(const VarlenLaunch& launch, const LaunchLists& lists)
        : cu_seqlens_q(lists[0]), key_starts(lists[1]), keys_used(lists[2]) {
      // A launch of single queries would take a decoding path that splits keys.
      max_queries = std::max<int64_t>(launch.max_queries, 2);
      causal = launch.right_limited && launch.window_left < 0;
      if (launch.window_left < 0) return;
      window_left = launch.window_left;
      if (launch.right_limited) window_right = 0;
    }
    const at::Tensor &cu_seqlens_q, &key_starts, &keys_used;
    int64_t max_queries;
    bool causal;
    std::optional<int64_t> window_left, window_right;
  };

  double softmax_scale_;
  mutable at::Tensor no_random_;
};

// --- efficient attention -------------------------------------------------------------------------

/// A call a sequence. Tensors are [group, tokens, G, dim]: query head h = key head * group + index
/// in the group, so that a key head is read by its whole group through a stride of 0.
class EfficientOperator final : public VarlenOperator {
 public:
  explicit EfficientOperator(const Shape& shape) : shape_(shape) {}

  std::pair<at::Tensor, at::Tensor> forward(const LaunchInput& input,
                                            const at::Tensor& /*place*/) const override {
    const auto& [launch, lists, q, k, v] = input;
    const at::Tensor all_o =
        at::empty({q.size(0), shape_.num_heads, shape_.head_dim_v}, q.options());
    const at::Tensor all_lse = at::empty({shape_.num_heads, q.size(0)}, q.options());
    for (int64_t b = 0; b < launch.sequences(); ++b) {
      const Range queries = launch.queries_of(b), keys = launch.keys_of(b);
      const auto result = at::_efficient_attention_forward(
          of_queries(q, queries), of_keys(k, keys), of_keys(v, keys), /*bias=*/std::nullopt,
          /*cu_seqlens_q=*/std::nullopt, /*cu_seqlens_k=*/std::nullopt,
          /*max_seqlen_q=*/std::nullopt, /*max_seqlen_k=*/std::nullopt, /*dropout_p=*/0.0,
          mask_type(launch), /*compute_log_sumexp=*/true, shape_.softmax_scale);
      of_queries(all_o, queries).copy_(std::get<0>(result));
      of_numbers(all_lse, queries).copy_(std::get<1>(result).narrow(2, 0, queries.size()));
    }
    return {all_o, all_lse};
  }

  std::array<at::Tensor, 3> backward(const LaunchInput& input,
                                     const OutputGradient& of_o) const override {
    const auto& [launch, lists, q, k, v] = input;
    const at::Tensor all_dq = at::empty(q.sizes(), q.options());
    const at::Tensor all_dk = at::empty(k.sizes(), k.options());
    const at::Tensor all_dv = at::empty(v.sizes(), v.options());
    const at::Tensor no_random = at::empty({}, q.options().dtype(at::kLong));
    for (int64_t b = 0; b < launch.sequences(); ++b) {
      const Range queries = launch.queries_of(b), keys = launch.keys_of(b);
      if (queries.empty()) continue;
      const auto [dq, dk, dv, bias] = at::_efficient_attention_backward(
          of_queries(of_o.d_o, queries), of_queries(q, queries), of_keys(k, keys), of_keys(v, keys),
          /*bias=*/std::nullopt, of_queries(of_o.o, queries).contiguous(),
          /*cu_seqlens_q=*/std::nullopt, /*cu_seqlens_k=*/std::nullopt, queries.size(), keys.size(),
          padded(of_o.lse, queries),
          /*dropout_p=*/0.0, no_random, no_random, mask_type(launch), /*bias_requires_grad=*/false,
          shape_.softmax_scale);
      of_queries(all_dq, queries).copy_(dq);
      all_dk.narrow(0, keys.begin, keys.size()).copy_(dk.sum(0));
      all_dv.narrow(0, keys.begin, keys.size()).copy_(dv.sum(0));
    }
    return {all_dq, all_dk, all_dv};
  }

 private:
  int64_t group() const { return shape_.num_heads / shape_.num_kv_heads; }
  /// None, or causal from the bottom right.
  static int64_t mask_type(const VarlenLaunch& launch) { return launch.right_limited ? 2 : 0; }

  at::Tensor of_queries(const at::Tensor& rows, const Range& queries) const {
    return rows.narrow(0, queries.begin, queries.size())
        .unflatten(1, {shape_.num_kv_heads, group()})
        .permute({2, 0, 1, 3});
  }
  at::Tensor of_keys(const at::Tensor& rows, const Range& keys) const {
    return rows.narrow(0, keys.begin, keys.size())
        .unsqueeze(0)
        .expand({group(), keys.size(), rows.size(1), rows.size(2)});
  }
  /// [group, G, tokens] of [H, rows].
  at::Tensor of_numbers(const at::Tensor& lse, const Range& queries) const {
    return lse.narrow(1, queries.begin, queries.size())
        .unflatten(0, {shape_.num_kv_heads, group()})
        .permute({1, 0, 2});
  }
  /// The backward reads LSE in tiles of 32 rows, those beyond the end infinite.
  at::Tensor padded(const at::Tensor& lse, const Range& queries) const {
    constexpr int64_t kTile = 32;
    const int64_t tokens = queries.size();
    const at::Tensor all = at::full({group(), shape_.num_kv_heads, round_up(tokens, kTile)},
                                    std::numeric_limits<double>::infinity(), lse.options());
    all.narrow(2, 0, tokens).copy_(of_numbers(lse, queries));
    return all;
  }

  Shape shape_;
};

/// The operator that was measured to be fastest for launches of such lengths.
class MeasuredOperator final : public VarlenOperator {
 public:
  MeasuredOperator(const MeasuredKernels& measured, std::unique_ptr<VarlenOperator> aten,
                   std::unique_ptr<VarlenOperator> flash4)
      : measured_(measured), aten_(std::move(aten)), flash4_(std::move(flash4)) {}

  kernels::LaunchLimits limits() const override { return flash4_->limits(); }  // the narrower ones
  int64_t query_tile(const VarlenLaunch& launch) const override {
    return of_backward(launch).query_tile(launch);
  }
  std::pair<at::Tensor, at::Tensor> forward(const LaunchInput& input,
                                            const at::Tensor& place) const override {
    return chosen(measured_.forward, input.launch.max_queries).forward(input, place);
  }
  std::array<at::Tensor, 3> backward(const LaunchInput& input,
                                     const OutputGradient& of_o) const override {
    return of_backward(input.launch).backward(input, of_o);
  }

 private:
  const VarlenOperator& chosen(const std::vector<KernelChoice>& by_class, int64_t rows) const {
    if (by_class.empty()) return *aten_;
    const auto length = static_cast<size_t>(kernels::length_class(rows));
    return by_class[std::min(length, by_class.size() - 1)] == KernelChoice::kFa4 ? *flash4_
                                                                                 : *aten_;
  }
  const VarlenOperator& of_backward(const VarlenLaunch& launch) const {
    return chosen(measured_.backward, std::max(launch.max_queries, launch.max_keys));
  }

  const MeasuredKernels& measured_;
  const std::unique_ptr<VarlenOperator> aten_, flash4_;
};

// --- choice --------------------------------------------------------------------------------------

/// Where a softcap is to be refused, not.
bool all_fused(const Shape& shape, ScalarType type, const TaskList& list) {
  return shape.softcap == 0 && std::ranges::all_of(list.tasks, [&](const kernels::Task& task) {
           return kernels::is_fused(shape, type, task);
         });
}

struct Divided {
  Divided(const Shape& shape, ScalarType type, const TaskList& list)
      : fused{list.queries, list.keys}, others{list.queries, list.keys} {
    for (const kernels::Task& task : list.tasks) {
      (kernels::is_fused(shape, type, task) ? fused : others).tasks.push_back(task);
    }
  }
  TaskList fused;
  TaskList others;  // for the matmul path
};

}  // namespace

std::unique_ptr<VarlenOperator> fused_operator(const Shape& shape, ScalarType type,
                                               const Flash4& flash4) {
  if (flash4.kernels != nullptr) {
    auto by_flash4 = flash4_operator(shape, *flash4.kernels);
    if (flash4.measured == nullptr) return by_flash4;
    return std::make_unique<MeasuredOperator>(*flash4.measured,
                                              std::make_unique<FlashOperator>(shape.softmax_scale),
                                              std::move(by_flash4));
  }
  if (type == ScalarType::kBFloat16) return std::make_unique<FlashOperator>(shape.softmax_scale);
  return std::make_unique<EfficientOperator>(shape);
}

void cuda_prepare(const Shape& shape, ScalarType type, const TaskList& list, int cuda_device,
                  Pass pass, TaskLaunches* launches, const Flash4& flash4) {
  if (!all_fused(shape, type, list)) return;
  const auto op = fused_operator(shape, type, flash4);
  varlen_prepare(shape, type, list, cuda_device, *op, pass, launches);
}

int64_t cuda_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list,
                     int cuda_device, TaskLaunches* launches, const Flash4& flash4) {
  const auto op = fused_operator(shape, type, flash4);
  if (all_fused(shape, type, list))
    return varlen_forward(shape, type, o_type, list, cuda_device, *op, launches);
  const Divided divided(shape, type, list);
  aten_matmul_forward(shape, type, divided.others, cuda_device, o_type);  // refuses a softcap
  return varlen_forward(shape, type, o_type, divided.fused, cuda_device, *op);
}

int64_t cuda_backward(const Shape& shape, ScalarType type, const TaskList& list, int cuda_device,
                      TaskLaunches* launches, const Flash4& flash4) {
  const auto op = fused_operator(shape, type, flash4);
  if (all_fused(shape, type, list))
    return varlen_backward(shape, type, list, cuda_device, *op, launches);
  const Divided divided(shape, type, list);
  aten_matmul_backward(shape, type, divided.others, cuda_device);  // refuses a softcap
  return varlen_backward(shape, type, divided.fused, cuda_device, *op);
}

}  // namespace distca
