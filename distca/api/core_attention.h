#pragma once
// CoreAttention computes core attention, softmax(QK^T)V, together with the other ranks of a
// communicator. Each rank gives Q, K, V of the tokens that it holds and gets O of these tokens,
// whichever ranks compute it. Backward works the same way. This is a complete program,
// examples/core_attention.cc; it runs on ranks as threads or on two processes:
//
//   #include <ATen/ATen.h>
//   #include <fmt/format.h>
//   #include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
//   #include <torch/csrc/distributed/c10d/TCPStore.hpp>
//
//   #include "distca/api/core_attention.h"
//   #include "distca/comm/c10d_group.h"
//   #include "distca/comm/thread_group.h"
//
//   void run_layer(distca::Communicator& comm) {
//     const distca::api::Shape shape{.num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
//     const auto plan = distca::api::plan_batch(
//         {.cu_seqlens = {0, 1500, 1700, 2048}, .num_ranks = comm.size(), .shape = shape});
//     distca::api::CoreAttention attention(comm, shape);
//     attention.compare(plan);  // all ranks have the same one
//     const int64_t tokens = plan.num_tokens(comm.rank());
//     const at::Tensor q = at::randn({tokens, 4, 64}, at::kBFloat16);
//     const at::Tensor k = at::randn({tokens, 2, 64}, at::kBFloat16), v = at::randn_like(k);
//     distca::api::Forward forward = attention.forward(plan, q, k, v);  // Q, K, V are on their way
//     const at::Tensor o = forward.wait();
//     distca::api::Backward backward = attention.backward(forward, at::ones_like(o));
//     const auto [dq, dk, dv] = backward.wait();
//     fmt::print("rank {}: O of {} tokens, {} bytes sent\n", comm.rank(), o.size(0),
//                attention.sent_bytes());
//   }
//
//   int main(int argc, char** argv) {
//     if (argc < 3) {  // ranks as threads
//       distca::run_ranks(2, {}, run_layer);
//       return 0;
//     }
//     const int rank = atoi(argv[1]);  // 0 or 1: two processes
//     c10d::TCPStoreOptions meeting{.isServer = rank == 0};
//     meeting.port = static_cast<uint16_t>(atoi(argv[2]));
//     const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", meeting);
//     const auto options = c10d::ProcessGroupGloo::Options::create();
//     options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
//     const auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, options);
//     run_layer(*distca::make_c10d_group(*group, *store, {}));
//   }
//
// Order. All ranks, even one that holds no tokens, call forward() and backward() in the same order.
// Any number of calls may be under way, of one plan or of several: one plan for each window, say,
// or one for each nano-batch. Each rank may wait for them in an order of its own. But over NCCL
// (Communicator::ends_in_order), all ranks call compute() in the same order as well, also in
// relation to forward() and backward(); the first wait() and a destructor call it where the caller
// has not.
//
// Overlap. Q, K and V travel between forward() and wait(), and O travels between compute() and
// wait(). Whatever the caller computes in between hides the exchange.
//
// Bits. Where DistCA's own kernel computes, and without split_kv, O and LSE have the same bits
// under every plan. Gradients of different plans differ in rounding.
//
// Threads. Calls may come from different threads, as those of autograd's backward do, but only one
// at a time. This holds for the calls on a CoreAttention, on its handles and on its communicator
// together, and also for their destructors.
//
// Errors. Error(kUsage) is about tensors and options, Error(kPlan) about plans. Each is one line
// that says what would be right, and is thrown before anything is sent. Error(kComm) says that a
// rank or the network has failed.

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "distca/api/planner.h"
#include "distca/comm/communicator.h"

namespace at {
class Tensor;
}

namespace distca::api {

class Layer;  // an internal class

// The shapes below use these letters: T is the number of tokens that this rank holds under the
// plan, H is num_heads, G is num_kv_heads, D is head_dim, and E is head_dim_v.

/// The forward pass of one layer, under way or done.
///
/// It keeps what backward needs until it is destroyed: this rank's Q, K, V, O and LSE, and the Q,
/// K, V that it received. A handle that is destroyed before wait() first does this rank's part for
/// the other ranks. It throws nothing. If it is destroyed by an exception, it does not wait for the
/// others.
class Forward {
 public:
  Forward(Forward&&) noexcept = default;
  Forward& operator=(Forward&&) noexcept = default;

  /// Computes this rank's tasks, for its own tokens and for those of other ranks, and sends O to
  /// the other ranks. It first computes the tasks of all calls that were made earlier. wait() calls
  /// it if the caller has not.
  void compute();
  /// Returns O [T, H, E] once all of it is there. A second call returns the same tensor. The caller
  /// must not write to it.
  at::Tensor wait();
  /// Returns the natural logarithm of the sum of exponentials, [T, H], in fp32 (in fp64 for fp64
  /// inputs). It waits as wait() does.
  at::Tensor lse();
  /// Frees this rank's own Q, K and V, for a caller who computes them again or keeps them itself.
  /// backward() is then given the same values. It waits as wait() does.
  void drop_inputs();

 private:
  friend class CoreAttention;
  explicit Forward(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}
  std::shared_ptr<Layer> layer_;  // this handle is its only owner
};

/// The backward pass of one layer, under way or done. It behaves as Forward does.
class Backward {
 public:
  Backward(Backward&&) noexcept = default;
  Backward& operator=(Backward&&) noexcept = default;

  /// Computes dQ, dK and dV of this rank's tasks and sends them, as Forward::compute() does with O.
  void compute();
  /// Returns dQ [T, H, D], dK [T, G, D], dV [T, G, E] once all contributions are there. It may be
  /// called again.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> wait();

 private:
  friend class CoreAttention;
  explicit Backward(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}
  std::shared_ptr<Layer> layer_;  // this handle is its only owner
};

struct CoreAttentionOptions {
  /// The factor that scores are multiplied with.
  ///
  /// Default: 0, which means 1 / sqrt(head_dim).
  double softmax_scale = 0;

  /// If above 0, a score s becomes softcap * tanh(s / softcap). This works on a CPU only.
  ///
  /// Default: 0, which leaves scores as they are.
  double softcap = 0;

  /// The number of threads of DistCA's own kernel. Give as many as this rank has cores. ATen's
  /// threads are set by at::set_num_threads.
  int threads = 1;

  /// The kernel that computes this rank's tasks (docs/kernels.md). "auto" takes DistCA's own kernel
  /// where it computes the type and the head_dim (fp32 and bf16, up to 256, on a CPU), and else
  /// ATen's. "cpu", "aten", "fa4" (FlashAttention 4, on Hopper in bf16) and "reference" demand one
  /// of them.
  std::string kernel = "auto";

  /// If true, dQ, dK and dV travel in fp32 where Q, K and V are in bf16. That takes twice the bytes
  /// and saves one rounding.
  bool wide_gradients = false;
};

/// The names that CoreAttentionOptions::kernel may have.
std::vector<std::string> kernel_names();
/// The folder in which kernels of FlashAttention 4 are looked for, for heads of this size in
/// "bfloat16", so many of them for each key head (docs/kernels.md). Throws Error(kUsage) for
/// another name of a type.
std::string compiled_kernels_folder(int64_t head_dim, std::string dtype,
                                    int64_t heads_of_a_key_head);

/// Core attention on one rank. A communicator serves one CoreAttention, and those that the second
/// constructor makes from it. For calls in an order of their own on the same ranks, give another
/// one a group that was split off (Communicator::split).
class CoreAttention {
 public:
  /// Borrows the communicator, which must outlive this object and its handles. Tensors must lie
  /// where the communicator's messages lie: on the CPU or on its CUDA device. All ranks give the
  /// same shape and options.
  CoreAttention(Communicator& comm, const Shape& shape, const CoreAttentionOptions& options = {});
  /// Makes another one on the communicator of an existing one, for layers of another shape. The
  /// calls on both are one sequence, which all ranks make in the same order, and they share the
  /// memory of messages. The existing one may be destroyed first.
  CoreAttention(const CoreAttention& beside, const Shape& shape,
                const CoreAttentionOptions& options = {});
  ~CoreAttention();

  /// Throws Error(kPlan) on every rank if the ranks have different plans. All ranks call it, and
  /// once for each plan is enough. It is not needed if one rank made the plan and sent it to the
  /// others.
  void compare(const BatchPlan& plan);

  /// Sends Q, K and V on their way and returns. The rows of q [T, H, D], k [T, G, D] and
  /// v [T, G, E] stand in the order of plan.tokens()[rank]. Strides are free; a tensor whose last
  /// dimension is not contiguous, or whose rows overlap (strides of 0), is copied. The caller must
  /// not write to the tensors until the handle is destroyed. Autograd records nothing.
  /// `softmax_scale` is that of this call, on all ranks, and of its backward; 0 means that of the
  /// options. A negative one takes a copy of Q.
  Forward forward(const BatchPlan& plan, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v, double softmax_scale = 0);
  /// Sends dO [T, H, E] on its way and returns. The caller must have waited for `forward`. It may
  /// destroy `forward` meanwhile, or start another backward of it.
  Backward backward(const Forward& forward, const at::Tensor& d_o);
  /// Sends dO likewise, and takes the values of Q, K and V that forward() was given. They are
  /// needed after Forward::drop_inputs() alone. The caller must not write to them until the handle
  /// is destroyed.
  Backward backward(const Forward& forward, const at::Tensor& d_o, const at::Tensor& q,
                    const at::Tensor& k, const at::Tensor& v);

  /// The bytes that this rank has sent so far, by this object and those that share its
  /// communicator.
  int64_t sent_bytes() const;
  /// The memory of messages that is in use or kept for reuse. It is given back when this object,
  /// those that share its communicator and their handles are destroyed.
  int64_t message_memory_bytes() const;

  struct Engine;  // an internal type

 private:
  std::shared_ptr<Engine> engine_;
};

}  // namespace distca::api
