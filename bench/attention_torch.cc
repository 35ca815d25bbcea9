#include "bench/attention_torch.h"

#ifdef DISTCA_WITH_TORCH
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "distca/base/error.h"
#include "distca/base/heap.h"
#include "distca/base/integers.h"
#endif

namespace distca::bench {

#ifdef DISTCA_WITH_TORCH

namespace {

constexpr int64_t kHugePage = 2 << 20;

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
        q_(contiguous(problem.q, problem.heads().used())),
        k_(contiguous(problem.k, problem.heads().kv_used)),
        v_(contiguous(problem.v, problem.heads().kv_used)),
        d_o_(contiguous(problem.d_o, problem.heads().used())) {
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

  double huge_pages() const override {
    return std::min(huge_page_share(q_.data_ptr()), huge_page_share(o_.data_ptr()));
  }

 private:
  /// The first `heads` heads, in the arena. They are copied by way of the heap, so that results
  /// come to lie behind its first pages, which are small.
  at::Tensor contiguous(Buffer& buffer, int64_t heads) {
    const at::Tensor from = view(buffer, heads).contiguous();
    std::byte* data = arena_.take(from.numel() * element_bytes(buffer.type()));
    return at::from_blob(data, from.sizes(), torch_type(buffer.type())).copy_(from);
  }

  Arena arena_;  // memory of the inputs
  double scale_;
  at::Tensor q_, k_, v_, d_o_, o_, lse_;
};

/// Results that PyTorch allocates in every call come from memory that the process keeps: a heap
/// grown at once, in huge pages.
void keep_heap() {
  constexpr int kLargest = 32 << 20;  // the most that glibc takes
  constexpr int kGrown = 1 << 29;
  keep_freed_memory();
  DISTCA_CHECK(mallopt(M_TOP_PAD, kGrown) == 1, "glibc refused the limit");
  const auto old_end = round_up(reinterpret_cast<int64_t>(sbrk(0)), kHugePage);
  void* volatile grows = std::malloc(kLargest / 2);
  std::free(grows);
  const auto end = reinterpret_cast<int64_t>(sbrk(0));
  // Refused: small pages, which the report shows.
  if (end > old_end) madvise(reinterpret_cast<void*>(old_end), end - old_end, MADV_HUGEPAGE);
}

}  // namespace

std::unique_ptr<TorchAttention> make_torch_attention(Problem& problem) {
  at::set_num_threads(1);
  static const bool kept = (keep_heap(), true);
  static_cast<void>(kept);
  return std::make_unique<AtenAttention>(problem);
}

#else

std::unique_ptr<TorchAttention> make_torch_attention(Problem&) { return nullptr; }

#endif

}  // namespace distca::bench
