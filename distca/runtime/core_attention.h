#pragma once
// Core attention of one step on one rank, disaggregated: Q, K, V are dispatched to the servers,
// tasks are computed, O and LSE are combined at home; in backward dO, LSE, delta are dispatched and
// dQ, dK, dV combined (DESIGN, "One layer of one nano-batch"). It does the communications and the
// core attention of a program; who calls them, and in which order, is the program's affair.
//
// Letters: T local tokens, H query heads, G key/value heads, D head_dim_qk, E head_dim_v.
// A home keeps its own rows of a layer from set_qkv() until take_gradients() or drop(), whichever
// exchanges carry them: forward and backward may follow different plans. What a server holds for
// others lies in the program's buffers.
// Local tokens are read where they are; only what travels is packed, and what comes home is put in
// place: at most one copy of each travelling byte on each side (counted). Received messages are
// the kernel's buffers as they lie.
// Rows that several tasks share (split-KV) are merged by LSE, in fp32 (fp64 for fp64): a
// server merges its own tasks' results for each row it received, the home its own tasks' and what
// came home; O travels in the compute type, merged or not. dQ is the sum of all tasks' parts.
// Thread rule: one thread.

#include <cstdint>
#include <memory>

#include "distca/comm/communicator.h"
#include "distca/program/program.h"
#include "distca/runtime/attention_kernel.h"
#include "distca/runtime/exchange_buffers.h"

namespace at {
class Tensor;
}

namespace distca {

/// Running totals of one rank.
struct ExchangeBytes {
  int64_t sent = 0;
  int64_t received = 0;
  int64_t packed = 0;    // copied from local rows into messages, conversions of type included
  int64_t unpacked = 0;  // copied or added from messages into local rows
  /// O and LSE that merges write, and on CUDA what goes to and comes from ATen's operators through
  /// memory of its own.
  int64_t copied = 0;

  ExchangeBytes& operator+=(const ExchangeBytes& other) {
    sent += other.sent;
    received += other.received;
    packed += other.packed;
    unpacked += other.unpacked;
    copied += other.copied;
    return *this;
  }
};

class CoreAttention {
 public:
  /// The kernel's type is that of Q, K, V, O and their gradients. Borrows everything; the buffers
  /// are prepared for the program.
  CoreAttention(const Program& program, AttentionKernel& kernel, Communicator& comm,
                const ExchangeBuffers& buffers);
  ~CoreAttention();

  // What the phases around core attention give; dedicated servers have none.
  /// q [T, H, D], k [T, G, D], v [T, G, E], detached from any graph. Before forward's dispatch.
  void set_qkv(int nano_batch, int layer, const at::Tensor& q, const at::Tensor& k,
               const at::Tensor& v);
  /// d_o [T, H, E]. Before backward's dispatch.
  void set_d_o(int nano_batch, int layer, const at::Tensor& d_o);

  // Operations of the program: those that communicate, and core attention.
  void pack(const Op& op);
  void issue(const Op& op);
  void wait(const Op& op);
  void land(const Op& op);
  void wait_sent(const Op& op);
  void compute(const Op& op);

  /// O [T, H, E], once forward's combine has landed and all core attention of the layer was played.
  const at::Tensor& o(int nano_batch, int layer) const;
  /// dq [T, H, D], dk [T, G, D], dv [T, G, E] in the compute type, once backward's combine has
  /// landed and all core attention was played. Frees what the home keeps of the layer.
  void take_gradients(int nano_batch, int layer, at::Tensor* dq, at::Tensor* dk, at::Tensor* dv);
  /// Frees what the home keeps of a layer that has no backward.
  void drop(int nano_batch, int layer);

  const ExchangeBytes& bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
