#pragma once
// Core attention over the ranks of a communicator: a rank gives Q, K, V of the tokens that it holds
// and gets their O, whoever computes it; backward the same. A complete program,
// examples/core_attention.cc, on ranks as threads or on two processes:
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
//     const int rank = atoi(argv[1]);  // of two processes
//     c10d::TCPStoreOptions meeting{.isServer = rank == 0};
//     meeting.port = static_cast<uint16_t>(atoi(argv[2]));
//     const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", meeting);
//     const auto options = c10d::ProcessGroupGloo::Options::create();
//     options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
//     const auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, options);
//     run_layer(*distca::make_c10d_group(*group, *store, {}));
//   }
//
// Order. All ranks call forward() and backward() in the same order; any number may be under way, of
// one plan or of several (a plan for each window, one for each nano-batch). They may be waited for
// in any order, each rank's own. A rank that holds no tokens calls them, too.
// Overlap. Between forward() and wait() Q, K, V travel; between compute() and wait() O does. What
// the caller computes there is what hides the exchange.
// Bits. Without split_kv O has the same bits under every plan, where our own kernel computes; LSE,
// too. Gradients differ in rounding between plans.
// Threads. Calls may come from different threads, as autograd's backward does, but one at a time:
// those on a CoreAttention, on its handles, and on its communicator, destructors included.
// Errors. Error(kUsage) for tensors and options, Error(kPlan) for plans, in one line that says what
// would be right, before anything is sent; Error(kComm) where a rank or the network failed.

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "distca/api/planner.h"
#include "distca/comm/communicator.h"

namespace at {
class Tensor;
}

namespace distca::api {

class Layer;  // inside

// Letters: T tokens that this rank holds under the plan, H num_heads, G num_kv_heads, D head_dim,
// E head_dim_v.

/// Forward of one layer: under way, then done. Until it is destroyed it keeps what backward needs:
/// this rank's Q, K, V, O and LSE, and the Q, K, V that it received. Dropped before wait(), it does
/// this rank's part for the other ranks first and throws nothing, unless an exception passes.
class Forward {
 public:
  Forward(Forward&&) noexcept;
  Forward& operator=(Forward&&) noexcept;
  ~Forward();

  /// Computes this rank's tasks, of its own tokens and of others', and sends the others' O home;
  /// first those of whatever was called earlier. wait() does it where it was not done.
  void compute();
  /// O [T, H, E], when all of it is there. May be called again: the same tensor, not to be written.
  at::Tensor wait();
  /// [T, H] natural log of the sum of exponentials, in fp32 (fp64 for fp64). Waits as wait() does.
  at::Tensor lse();

 private:
  friend class CoreAttention;
  explicit Forward(std::unique_ptr<Layer> layer);
  std::unique_ptr<Layer> layer_;
};

/// Backward of one layer, likewise.
class Backward {
 public:
  Backward(Backward&&) noexcept;
  Backward& operator=(Backward&&) noexcept;
  ~Backward();

  void compute();
  /// dQ [T, H, D], dK [T, G, D], dV [T, G, E], when all contributions are there. May be called
  /// again.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> wait();

 private:
  friend class CoreAttention;
  explicit Backward(std::unique_ptr<Layer> layer);
  std::unique_ptr<Layer> layer_;
};

struct CoreAttentionOptions {
  /// What scores are multiplied with; 0: 1 / sqrt(head_dim).
  double softmax_scale = 0;
  /// A score s becomes softcap * tanh(s / softcap); 0: it stays. On a CPU only.
  double softcap = 0;
  /// Threads of our own kernel. Take as many as this rank has cores; ATen's are
  /// at::set_num_threads.
  int threads = 1;
  /// "auto": our own where it computes the type and the head_dim (fp32 and bf16, to 256, on a CPU),
  /// else ATen's. "cpu", "aten", "reference" demand one (docs/kernels.md).
  std::string kernel = "auto";
  /// dQ, dK, dV travel in fp32 where Q, K, V are in bf16: twice the bytes, one rounding less.
  bool wide_gradients = false;
};

/// One rank's. One object a communicator: another one on the same ranks takes one that was split
/// off (Communicator::split).
class CoreAttention {
 public:
  /// Borrows the communicator, which must outlive it and its handles. Where the communicator's
  /// messages lie, on the CPU or on a CUDA device, tensors lie, too. All ranks give the same.
  CoreAttention(Communicator& comm, const Shape& shape, const CoreAttentionOptions& options = {});
  ~CoreAttention();

  /// Throws Error(kPlan), on every rank, where ranks have different plans. All ranks call it; once
  /// for each plan is enough, and nobody needs it where one rank's plan was sent to the others.
  void compare(const BatchPlan& plan);

  /// Issues Q, K, V and returns. q [T, H, D], k [T, G, D], v [T, G, E]: rows in the order of
  /// plan.tokens()[rank], any strides; the last dimension, if it is not contiguous, is copied. They
  /// are not to be written until the handle has gone. Nothing is recorded by autograd.
  Forward forward(const BatchPlan& plan, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v);
  /// Issues dO [T, H, E] and returns. `forward` must have been waited for; it may be destroyed
  /// meanwhile, or have another backward.
  Backward backward(const Forward& forward, const at::Tensor& d_o);

  /// By this rank, so far.
  int64_t sent_bytes() const;
  /// Memory of messages that is held for reuse or in use, so far never given back.
  int64_t message_memory_bytes() const;

  struct Engine;  // inside

 private:
  std::shared_ptr<Engine> engine_;
};

}  // namespace distca::api
