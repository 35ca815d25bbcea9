#include "distca/train/stage_p2p.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/forecast/step_program.h"

namespace distca {

StageP2p::StageP2p(const Program& program, const ExchangeBuffers& buffers, Communicator& comm,
                   const LlamaConfig& model)
    : program_(program), buffers_(buffers), model_(model), under_way_(program, comm) {}

/// The rows of a message, in a buffer.
at::Tensor StageP2p::at(int32_t buffer, const PeerMessage& message) const {
  return at::from_blob(
      buffers_.data(buffer) + message.offset,
      {message.bytes / p2p_bytes(model_, 1), model_.hidden_size},
      at::dtype(aten_type(model_.dtype)).device(aten_device(buffers_.cuda_device())));
}

void StageP2p::pack(const Op& op, const at::Tensor& rows) {
  const c10::AutoGradMode no_grad(false);
  const MessageList& list = program_.sends(op);
  DISTCA_CHECK(rows.scalar_type() == aten_type(model_.dtype) &&
                   p2p_bytes(model_, rows.size(0)) == list.bytes,
               "{}: {} rows, the program sends {} bytes", describe(op), rows.size(0), list.bytes);
  int64_t begin = 0;
  for (const PeerMessage& message : list.messages) {
    at::Tensor there = at(op.out, message);
    there.copy_(rows.narrow(0, begin, there.size(0)));
    begin += there.size(0);
  }
  bytes_.packed += list.bytes;
}

at::Tensor StageP2p::land(const Op& op) {
  const c10::AutoGradMode no_grad(false);
  const MessageList& list = program_.receives(op);
  at::Tensor rows =
      at::empty({list.bytes / p2p_bytes(model_, 1), model_.hidden_size},
                at::dtype(aten_type(model_.dtype)).device(aten_device(buffers_.cuda_device())));
  int64_t begin = 0;
  for (const PeerMessage& message : list.messages) {
    const at::Tensor there = at(op.in, message);
    rows.narrow(0, begin, there.size(0)).copy_(there);
    begin += there.size(0);
  }
  bytes_.unpacked += list.bytes;
  return rows;
}

void StageP2p::issue(const Op& op) {
  bytes_.sent += program_.sends(op).bytes;
  bytes_.received += program_.receives(op).bytes;
  under_way_.issue(op, data(op.out), data(op.in));
}

}  // namespace distca
