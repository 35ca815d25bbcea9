#include "distca/runtime/cuda/flash4_operator.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <numbers>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/runtime/cuda/compiled_kernels.h"
#include "distca/runtime/cuda/scratch_tensors.h"
#include "distca/runtime/cuda/varlen_attention.h"

namespace distca {
namespace {

using kernels::LaunchLimits;
using kernels::Shape;
using kernels::VarlenLaunch;

/// CUDA's handle of the stream on which operators launch.
void* stream_of(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return nullptr;
  const c10::Device device = tensor.device();
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

KernelMask mask_of(const VarlenLaunch& launch) {
  if (launch.window_left >= 0) return KernelMask::kWindow;
  return launch.right_limited ? KernelMask::kCausal : KernelMask::kFull;
}

/// The limits of a window, or two times none.
void add_window(const VarlenLaunch& launch, KernelArguments& arguments) {
  if (launch.window_left < 0) {
    arguments.none(2);
  } else {
    arguments.integer(launch.window_left)
        .integer(launch.right_limited ? 0 : launch.max_keys);  // none is farther away
  }
}

class Flash4Operator final : public VarlenOperator {
 public:
  Flash4Operator(const Shape& shape, const CompiledKernels& kernels)
      : shape_(shape), kernels_(kernels) {
    const std::string fault = kernels.fault(shape, ScalarType::kBFloat16);
    DISTCA_CHECK(fault.empty(), "kernels {}", fault);
  }

  LaunchLimits limits() const override { return kernels::kFlash4Limits; }

  std::pair<at::Tensor, at::Tensor> forward(const LaunchInput& input,
                                            const at::Tensor& place) const override {
    const auto& [launch, lists, q, k, v] = input;
    at::Tensor o = place, lse;
    ScratchTensors results;
    if (!place.defined())
      results.want(o, q.scalar_type(), {q.size(0), shape_.num_heads, shape_.head_dim_v});
    results.want(lse, at::kFloat, {shape_.num_heads, q.size(0)});
    results.make(q.device());
    KernelArguments arguments;
    arguments.add(q).add(k).add(v).add(o).add(lse).number(shape_.softmax_scale);
    arguments.add(lists[0]).add(lists[1]).none().add(lists[2]).none();
    add_window(launch, arguments);
    arguments.none(2).list_of_none(2).none(2);
    kernels_.call(mask_of(launch), KernelStep::kForward, arguments, stream_of(q));
    return {o, lse};
  }

  int64_t query_tile(const VarlenLaunch& launch) const override {
    return kernels_.tiles(mask_of(launch)).first;
  }

  std::array<at::Tensor, 3> backward(const LaunchInput& input,
                                     const OutputGradient& of_o) const override {
    const auto& [launch, lists, q, k, v] = input;
    const Sums sums(*this, input, of_o);
    // The kernel reads q and k before the one that was launched before it has ended: that one is
    // Sums' last operator, which writes neither.
    KernelArguments main;
    main.add(q).add(k).add(v).add(of_o.d_o).add(sums.scaled_lse).add(sums.delta).add(sums.dq);
    main.add(sums.dk).add(sums.dv).number(shape_.softmax_scale);
    main.add(lists[0]).add(lists[1]).none(2);
    add_window(launch, main);
    main.add(sums.dq_order).add(sums.dk_order).add(sums.dv_order).list_of_none(2).none(2);
    kernels_.call(
        sums.mask,
        sums.dq_order.defined() ? KernelStep::kBackwardDeterministic : KernelStep::kBackward, main,
        stream_of(q));

    at::Tensor dq, dk = sums.dk, dv = sums.dv;
    ScratchTensors results;
    results.want(dq, q.scalar_type(), q.sizes().vec());
    if (group() > 1) {
      results.want(dk, k.scalar_type(), k.sizes().vec());
      results.want(dv, v.scalar_type(), v.sizes().vec());
    }
    results.make(q.device());
    convert(sums.mask, KernelStep::kBehindBackwardQ, sums.dq, dq, shape_.softmax_scale, lists[0]);
    if (group() == 1) return {dq, dk, dv};
    convert(sums.mask, KernelStep::kBehindBackwardKv, sums.dk, dk, shape_.softmax_scale, lists[1]);
    convert(sums.mask, KernelStep::kBehindBackwardKv, sums.dv, dv, 1, lists[1]);
    return {dq, dk, dv};
  }

 private:
  /// Memory in which backward adds up, in fp32, with each sequence's rows from a block's begin on,
  /// and what it reads of the output likewise. Rows of padding have the probability 0.
  struct Sums {
    Sums(const Flash4Operator& of, const LaunchInput& input, const OutputGradient& of_o)
        : mask(mask_of(input.launch)) {
      const auto& [launch, lists, q, k, v] = input;
      const auto [query_tile, key_tile] = of.kernels_.tiles(mask);
      const int64_t heads = of.shape_.num_heads, key_heads = of.shape_.num_kv_heads,
                    head_dim = of.shape_.head_dim_qk, sequences = launch.sequences();
      const int64_t rows = padded_rows(q.size(0), sequences, query_tile),
                    keys = padded_rows(k.size(0), sequences, key_tile);
      const bool shares_keys = of.group() > 1;
      // Sequences without queries have blocks of keys, too; max_keys leaves them out.
      int64_t most_keys = 0;
      for (int64_t b = 0; b < sequences; ++b)
        most_keys = std::max<int64_t>(most_keys, launch.key_starts[b + 1] - launch.key_starts[b]);
      const int64_t query_blocks = ceil_div(launch.max_queries, query_tile),
                    key_blocks = ceil_div(most_keys, key_tile);
      ScratchTensors zeros;
      zeros.want(dq, at::kFloat, {heads, rows * head_dim});
      if (shares_keys) {
        zeros.want(dk, at::kFloat, {key_heads, keys * head_dim});
        zeros.want(dv, at::kFloat, {key_heads, keys * head_dim});
      }
      if (at::globalContext().deterministicAlgorithms()) {
        zeros.want(dq_order, at::kInt, {sequences, heads, query_blocks, 1});
        if (shares_keys) {
          zeros.want(dk_order, at::kInt, {sequences, key_heads, key_blocks, 2});
          zeros.want(dv_order, at::kInt, {sequences, key_heads, key_blocks, 2});
        }
      }
      zeros.make(q.device(), /*zeros=*/true);
      if (!shares_keys) {  // these are the results
        ScratchTensors results;
        results.want(dk, k.scalar_type(), k.sizes().vec());
        results.want(dv, v.scalar_type(), v.sizes().vec());
        results.make(q.device());
      }
      // Where the logarithm is infinite, the probability is 0, whatever delta is.
      delta = at::index_select(of_o.delta, 1, lists[3]);
      scaled_lse =
          at::add(lists[4], at::index_select(of_o.lse, 1, lists[3]), 1 / std::numbers::ln2);
    }
    KernelMask mask;
    at::Tensor delta, scaled_lse, dq, dk, dv;
    at::Tensor dq_order, dk_order, dv_order;  // undefined where the order is free
  };

  int64_t group() const { return shape_.num_heads / shape_.num_kv_heads; }

  void convert(KernelMask mask, KernelStep step, const at::Tensor& sums, const at::Tensor& result,
               double scale, const at::Tensor& starts) const {
    KernelArguments arguments;
    arguments.add(sums).add(result).number(scale).add(starts).none(3);
    kernels_.call(mask, step, arguments, stream_of(result));
  }

  const Shape shape_;
  const CompiledKernels& kernels_;
};

}  // namespace

std::unique_ptr<VarlenOperator> flash4_operator(const Shape& shape,
                                                const CompiledKernels& kernels) {
  return std::make_unique<Flash4Operator>(shape, kernels);
}

}  // namespace distca
