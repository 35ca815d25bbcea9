#pragma once
// StepAttention does the communication and the core attention of one step on one rank, for a
// program that says what is called in which order. In forward, Q, K and V are dispatched to the
// servers, the tasks are computed, and O and LSE are combined at home. In backward, dO, LSE and
// delta are dispatched, and dQ, dK and dV are combined (DESIGN, "One layer of one nano-batch").
//
// The shapes below use these letters: T is the number of local tokens, H of query heads, G of
// key/value heads, D is head_dim_qk, and E is head_dim_v.
//
// Memory. A home keeps its own rows of a layer from set_qkv() until take_gradients() or drop().
// These rows belong to no exchange, so forward and backward may follow different plans. What a
// server holds for other ranks lies in the program's buffers.
//
// Copies. Local tokens are read where they are. Only what travels is packed, and what comes home is
// put in its place, so each byte that travels is copied at most once on each side. The copies are
// counted. The kernel reads received messages where they lie.
//
// Split-KV. Rows that several tasks share are merged by LSE, in fp32 (in fp64 for fp64). A server
// merges the results of its own tasks for each row that it received. The home merges the results of
// its own tasks with those that came home. O travels in the compute type, whether it was merged or
// not. dQ is the sum of the parts of all tasks.
//
// Threads. One thread uses an object.

#include <cstdint>
#include <memory>
#include <tuple>

#include "distca/comm/communicator.h"
#include "distca/program/program.h"
#include "distca/runtime/attention_kernel.h"
#include "distca/runtime/exchange_buffers.h"

namespace at {
class Tensor;
}

namespace distca {

/// Running totals of the bytes of one rank.
struct ExchangeBytes {
  int64_t sent = 0;
  int64_t received = 0;
  /// Copied from local rows into messages, including conversions of type.
  int64_t packed = 0;
  /// Copied or added from messages into local rows.
  int64_t unpacked = 0;
  /// O and LSE that merges have written and, on CUDA, what was copied to and from the memory of
  /// ATen's operators.
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

/// dQ, dK and dV.
using QkvGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

class StepAttention {
 public:
  /// Borrows all four. The kernel's type is the type of Q, K, V, O and their gradients. The buffers
  /// must have been prepared for the program.
  StepAttention(const Program& program, AttentionKernel& kernel, Communicator& comm,
                const ExchangeBuffers& buffers);
  ~StepAttention();

  // The phases around core attention call the next four. Dedicated servers do not.

  /// Takes q [T, H, D], k [T, G, D] and v [T, G, E], which are detached from any graph. It is
  /// called before the dispatch of forward.
  void set_qkv(int nano_batch, int layer, const at::Tensor& q, const at::Tensor& k,
               const at::Tensor& v);
  /// Frees Q, K and V of a layer whose forward has been played, and takes the same values again
  /// before the dispatch of backward. Servers that get them again read them earlier: there they
  /// must stay.
  void drop_qkv(int nano_batch, int layer);
  void set_qkv_again(int nano_batch, int layer, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v);
  /// Takes d_o [T, H, E]. It is called before the dispatch of backward.
  void set_d_o(int nano_batch, int layer, const at::Tensor& d_o);

  // The first five are the parts of an exchange, with the names of OpPlayer (executor.h). compute()
  // does an operation of core attention.
  void pack(const Op& op);
  void issue(const Op& op);
  void wait(const Op& op);
  void land(const Op& op);
  void wait_sent(const Op& op);
  void compute(const Op& op);

  /// Returns O [T, H, E]. The combine of forward must have landed, and all core attention of the
  /// layer must have been played.
  const at::Tensor& o(int nano_batch, int layer) const;
  /// Returns dq [T, H, D], dk [T, G, D] and dv [T, G, E] in the compute type, and frees what the
  /// home keeps of the layer. The combine of backward must have landed, and all core attention of
  /// the layer must have been played.
  QkvGradients take_gradients(int nano_batch, int layer);
  /// Frees what the home keeps of a layer that has no backward.
  void drop(int nano_batch, int layer);

  const ExchangeBytes& bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
