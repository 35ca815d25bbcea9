#pragma once
// Core attention of one nano-batch on one rank, disaggregated: Q, K, V enter at the servers, tasks
// are attended, O and LSE leave for home; in backward dO, LSE, delta enter and dQ, dK, dV leave
// (DESIGN, "One layer of one nano-batch").
//
// Letters: T local tokens, H query heads, G key/value heads, D head_dim_qk, E head_dim_v.
// Local tokens are read where they are; only what travels is packed, once on each side (counted).
// Rows that several tasks share (key sub-ranges) are merged by LSE, in fp32 (fp64 for fp64): a
// server merges its own tasks' results for each row it received, the home its own tasks' and what
// came home; O travels in the compute type, merged or not. dQ is the sum of all tasks' parts.
// Servers keep the Q, K, V they received until the layer's backward has run. Thread rule: one
// thread; every rank calls the same functions for the same layers in the same order.

#include <cstdint>
#include <memory>
#include <string_view>

#include "distca/comm/communicator.h"
#include "distca/plan/exchange.h"
#include "distca/runtime/attention_kernel.h"

namespace at {
class Tensor;
}

namespace distca {

struct CoreAttentionOptions {
  int64_t window_left = -1;  // tokens; -1 = unlimited
  int num_layers = 1;
  int nano_batch = 0;  // its index in the batch: keeps the messages of different nano-batches apart
  /// The type in which dQ, dK, dV travel home: the compute type, or the accumulator's.
  enum class GradientTravel { kCompute, kAccumulator } gradient_travel = GradientTravel::kCompute;
};

/// Running totals of one rank.
struct ExchangeBytes {
  int64_t sent = 0;
  int64_t received = 0;
  /// Rows packed into or unpacked from messages, O and LSE that merges write, and on CUDA what goes
  /// to and comes from ATen's operators through memory of its own.
  int64_t copied = 0;
};

class CoreAttention {
 public:
  /// `exchange` is this rank's part of a plan. The kernel's type is that of Q, K, V, O and their
  /// gradients.
  CoreAttention(RankExchange exchange, const CoreAttentionOptions& options, AttentionKernel& kernel,
                Communicator& comm);
  ~CoreAttention();

  /// q [T, H, D], k [T, G, D], v [T, G, E], detached from any graph. `operation` names the step in
  /// errors.
  void enter(int layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
             std::string_view operation);
  void attend(int layer);
  /// O [T, H, E].
  at::Tensor leave(int layer, std::string_view operation);

  /// d_o [T, H, E].
  void enter_backward(int layer, const at::Tensor& d_o, std::string_view operation);
  void attend_backward(int layer);
  /// Writes dq [T, H, D], dk [T, G, D], dv [T, G, E] in the compute type and ends the layer: what
  /// was kept is freed.
  void leave_backward(int layer, at::Tensor* dq, at::Tensor* dk, at::Tensor* dv,
                      std::string_view operation);
  /// For a forward without backward.
  void drop(int layer);

  const ExchangeBytes& bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
