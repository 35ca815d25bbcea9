#pragma once
// Plays the messages between the ranks of a server that divide the matrices of its layers: rows
// that all of them gather, and the parts of rows that are summed (program/tensor_rows.h); and, one
// by one, those of the loss. Letters: R rows of the server, r of this rank, C hidden_size.
//
//     messages.pack(op, rows), messages.issue(op);  // a kGatherRows
//     const at::Tensor all = messages.rows(phase);  // the phase that reads them, once it has
//     landed
//
// Sums are made in rank order in the main params' type, and rounded once. Include <ATen/ATen.h>
// before this header. Thread rule: one thread; all ranks of a server alike.

#include <cstdint>
#include <span>

#include "distca/comm/communicator.h"
#include "distca/comm/traced.h"
#include "distca/model/tensor_phases.h"
#include "distca/program/program.h"
#include "distca/runtime/exchange_buffers.h"
#include "distca/runtime/messages_under_way.h"
#include "distca/runtime/step_attention.h"

namespace distca {

class TensorMessages final : public TensorLoss {
 public:
  /// Borrows all of them but the model's shape. The buffers must have been prepared for the
  /// program. The executor records the messages of the program, `recorder` those of the loss; null
  /// records none, and so does a CUDA device, whose time the host does not know.
  TensorMessages(const Program& program, const ExchangeBuffers& buffers, Communicator& comm,
                 const LlamaConfig& model, TraceRecorder* recorder);

  /// Copies this rank's rows [r, C] to where a kGatherRows sends them from. `second` has the other
  /// half of pairs.
  void pack(const Op& op, const at::Tensor& rows, const at::Tensor& second = {});
  /// The gathered rows [R, C] that a phase reads, where they lie; of pairs, the first half or, with
  /// `second`, the other one.
  at::Tensor rows(const Op& phase, bool second = false) const;
  /// Where a phase leaves its part of each row [R, C].
  at::Tensor parts(const Op& phase) const;
  /// The sum of this rank's rows [r, C], once a kSumRows has landed.
  at::Tensor sum(const Op& op) const;

  // The other parts of a communication, with the names of OpPlayer (runtime/executor.h).
  void issue(const Op& op);
  void wait(const Op& op) { under_way_.wait(op); }
  void wait_sent(const Op& op) { under_way_.wait_sent(op); }

  at::Tensor gather_rows(const at::Tensor& rows, std::span<const int64_t> counts) override;
  at::Tensor gather_statistics(const at::Tensor& statistics) override;
  at::Tensor sum_rows(const at::Tensor& parts, std::span<const int64_t> counts) override;

  const ExchangeBytes& bytes() const { return bytes_; }
  /// How long the loss has waited for messages. On a CUDA device it is 0, because the device waits.
  double loss_waited_s() const { return loss_waited_s_; }

 private:
  at::Tensor view(int32_t buffer, int64_t rows, int64_t columns) const;
  at::Tensor ordered_sum(const at::Tensor& own, const at::Tensor& others) const;
  void exchange(const at::Tensor& all, std::span<const int64_t> counts, const at::Tensor& own,
                bool gathers, const at::Tensor& received);
  const TensorPlace& place() const { return program_.stage.tensor; }

  const Program& program_;
  const ExchangeBuffers& buffers_;
  const LlamaConfig model_;
  MessagesUnderWay under_way_;
  TracedCommunicator of_loss_;
  ExchangeBytes bytes_;
  double loss_waited_s_ = 0;
};

}  // namespace distca
