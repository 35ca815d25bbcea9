#include "bench/attention_torch.h"

#include "distca/base/build_info.h"

#ifdef DISTCA_WITH_TORCH
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include "distca/base/error.h"
#endif

namespace distca::bench {

#ifdef DISTCA_WITH_TORCH

namespace {

at::ScalarType torch_type(ScalarType type) {
  return type == ScalarType::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

/// [1, heads, tokens, dim] of the buffer's first heads, without a copy.
at::Tensor view(Buffer& buffer, int64_t heads) {
  const kernels::Rows rows = buffer.rows();
  return at::from_blob(rows.data, {1, heads, buffer.tokens(), buffer.dim()},
                       {0, rows.head_stride, rows.token_stride, 1}, torch_type(buffer.type()));
}

class AtenAttention : public TorchAttention {
 public:
  explicit AtenAttention(Problem& problem)
      : scale_(problem.shape().softmax_scale),
        q_(view(problem.q, problem.heads().used()).contiguous()),
        k_(expanded(problem.k, problem)),
        v_(expanded(problem.v, problem)),
        d_o_(view(problem.d_o, problem.heads().used()).contiguous()) {
    run(Pass::kForward);
  }

  void run(Pass pass) override {
    if (pass == Pass::kForward) {
      std::tie(o_, lse_) = at::_scaled_dot_product_flash_attention_for_cpu(
          q_, k_, v_, /*dropout_p=*/0, /*is_causal=*/true, /*attn_mask=*/{}, scale_);
    } else {
      at::_scaled_dot_product_flash_attention_for_cpu_backward(d_o_, q_, k_, v_, o_, lse_,
                                                               /*dropout_p=*/0, /*is_causal=*/true,
                                                               /*attn_mask=*/{}, scale_);
    }
  }

  double distance(Problem& problem) override {
    const at::Tensor ours = view(problem.o, problem.heads().used()).to(at::kDouble);
    const at::Tensor theirs = o_.to(at::kDouble);
    return ((ours - theirs).norm() / theirs.norm()).item<double>();
  }

 private:
  static at::Tensor expanded(Buffer& keys, const Problem& problem) {
    return view(keys, problem.heads().kv_used)
        .repeat_interleave(problem.heads().group(), 1)
        .contiguous();
  }

  double scale_;
  at::Tensor q_, k_, v_, d_o_, o_, lse_;
};

}  // namespace

std::string torch_version() { return build_info::kTorch; }

std::unique_ptr<TorchAttention> make_torch_attention(Problem& problem) {
  at::set_num_threads(1);
  // Results that PyTorch allocates in every call come from memory that the process keeps.
  constexpr int kLargest = 32 << 20;  // the most that glibc takes
  constexpr int kKept = 1 << 30;
  DISTCA_CHECK(mallopt(M_MMAP_THRESHOLD, kLargest) == 1 && mallopt(M_TRIM_THRESHOLD, kKept) == 1,
               "glibc refused the limits");
  return std::make_unique<AtenAttention>(problem);
}

#else

std::string torch_version() { return ""; }
std::unique_ptr<TorchAttention> make_torch_attention(Problem&) { return nullptr; }

#endif

}  // namespace distca::bench
