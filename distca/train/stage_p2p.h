#pragma once
// Sends rows between the stages of a pipeline in a step (program/visit.h): the rows [T, C] of
// a nano-batch between two layers, or their gradients, in the compute type. T are the local tokens,
// C is hidden_size. Each row is copied once on either side; copies are counted.
//
//     p2p.pack(op, rows), p2p.issue(op);     // a send
//     p2p.issue(op), p2p.wait(op);           // a receive
//     nano.begin(p2p.land(op));
//
// Thread rule: one thread.

#include <cstddef>
#include <cstdint>

#include "distca/comm/communicator.h"
#include "distca/model/llama_config.h"
#include "distca/program/program.h"
#include "distca/runtime/exchange_buffers.h"
#include "distca/runtime/messages_under_way.h"
#include "distca/runtime/step_attention.h"

namespace distca {

class StageP2p {
 public:
  /// Borrows all of them but the model's shape. The buffers must have been prepared for the
  /// program.
  StageP2p(const Program& program, const ExchangeBuffers& buffers, Communicator& comm,
           const LlamaConfig& model);

  /// Copies the rows of a send to where they are sent from. Rows of another number or type than the
  /// program's are a CHECK.
  void pack(const Op& op, const at::Tensor& rows);
  /// Returns a copy of the rows of a receive, which has been waited for.
  at::Tensor land(const Op& op);

  // The other parts, with the names of OpPlayer (executor.h).
  void issue(const Op& op);
  void wait(const Op& op) { under_way_.wait(op); }
  void wait_sent(const Op& op) { under_way_.wait_sent(op); }

  const ExchangeBytes& bytes() const { return bytes_; }

 private:
  at::Tensor at(int32_t buffer, const PeerMessage& message) const;
  std::byte* data(int32_t buffer) const { return buffer < 0 ? nullptr : buffers_.data(buffer); }

  const Program& program_;
  const ExchangeBuffers& buffers_;
  const LlamaConfig model_;
  MessagesUnderWay under_way_;
  ExchangeBytes bytes_;
};

}  // namespace distca
