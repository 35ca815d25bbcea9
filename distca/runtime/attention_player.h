#pragma once
// Plays a program's exchanges and core attention with Q, K, V and dO that are given, without a
// model: its phases (embedding, pre, post, loss, sums, update) cost nothing. For tests and for
// benchmarks of the exchange. Thread rule: one thread.

#include <functional>
#include <memory>
#include <vector>

#include "distca/runtime/core_attention.h"
#include "distca/runtime/executor.h"

namespace distca {

class AttentionPlayer final : public OpPlayer {
 public:
  /// The tensors of a layer of one nano-batch on this rank, shapes as in core_attention.h.
  struct Inputs {
    at::Tensor q, k, v;
    at::Tensor d_o;  // undefined: forward only
  };
  struct Outputs {
    at::Tensor o;
    at::Tensor dq, dk, dv;
  };
  /// One nano-batch. Of every layer alike where `inputs` are of one layer only.
  struct Nano {
    RankExchange exchange;
    std::vector<Inputs> inputs;  // [layer]; empty: a dedicated server
  };
  /// Borrows all but the nano-batches.
  AttentionPlayer(std::vector<Nano> nano_batches, const CoreAttentionOptions& options,
                  AttentionKernel& kernel, Communicator& comm, const ExchangeBuffers& buffers);
  ~AttentionPlayer() override;

  void play(const Op& op) override;
  void pack(const Op& op) override;
  void post(const Op& op) override;
  void wait(const Op& op) override;
  void land(const Op& op) override;
  void wait_sent(const Op& op) override;

  /// Once the program was played.
  const Outputs& outputs(int nano_batch, int layer) const;
  /// Of all nano-batches.
  ExchangeBytes bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
