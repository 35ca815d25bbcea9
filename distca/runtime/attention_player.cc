#include "distca/runtime/attention_player.h"

#include <ATen/ATen.h>

#include "distca/base/error.h"

namespace distca {
namespace {

bool comes_home(const Op& op, Pass pass) { return op.kind == OpKind::kLeave && op.pass == pass; }

}  // namespace

struct AttentionPlayer::State {
  struct Batch {
    std::vector<Inputs> inputs;
    std::vector<Outputs> outputs;  // [layer]
    std::unique_ptr<CoreAttention> attention;

    const Inputs& of(int layer) const { return inputs.size() == 1 ? inputs[0] : inputs[layer]; }
  };
  std::vector<Batch> batches;

  Batch& of(const Op& op) { return batches.at(op.nano_batch); }
};

AttentionPlayer::AttentionPlayer(std::vector<Nano> nano_batches,
                                 const CoreAttentionOptions& options, AttentionKernel& kernel,
                                 Communicator& comm, const ExchangeBuffers& buffers)
    : state_(std::make_unique<State>()) {
  const auto num_layers = static_cast<size_t>(options.num_layers);
  for (Nano& nano : nano_batches) {
    DISTCA_CHECK(nano.inputs.size() <= 1 || nano.inputs.size() == num_layers,
                 "inputs of {} layers, not 1 or {}", nano.inputs.size(), num_layers);
    state_->batches.push_back({.inputs = std::move(nano.inputs),
                               .outputs = std::vector<Outputs>(num_layers),
                               .attention = std::make_unique<CoreAttention>(
                                   std::move(nano.exchange), options, kernel, comm, buffers)});
  }
}
AttentionPlayer::~AttentionPlayer() = default;

void AttentionPlayer::play(const Op& op) {
  if (op.layer < 0) return;
  State::Batch& batch = state_->of(op);
  Outputs& outputs = batch.outputs[op.layer];
  if (op.kind == OpKind::kAttend) return batch.attention->attend(op);
  if (op.kind == OpKind::kPre && op.pass == Pass::kForward) {
    const Inputs& inputs = batch.of(op.layer);
    batch.attention->set_qkv(op.layer, inputs.q, inputs.k, inputs.v);
  } else if (op.kind == OpKind::kPost && op.pass == Pass::kForward) {
    const bool forward_only = !batch.of(op.layer).d_o.defined();
    const at::Tensor& o = batch.attention->o(op.layer);
    outputs.o = forward_only ? o : o.clone();
    if (forward_only) batch.attention->drop(op.layer);
  } else if (op.kind == OpKind::kPost) {
    batch.attention->set_d_o(op.layer, batch.of(op.layer).d_o);
  } else if (op.kind == OpKind::kPre) {
    batch.attention->take_gradients(op.layer, &outputs.dq, &outputs.dk, &outputs.dv);
  }
}

void AttentionPlayer::pack(const Op& op) { state_->of(op).attention->pack(op); }
void AttentionPlayer::post(const Op& op) {
  State::Batch& batch = state_->of(op);
  batch.attention->post(op);
  // On a dedicated server nothing comes after the layer's last exchange.
  if (batch.inputs.empty() && comes_home(op, Pass::kBackward)) batch.attention->drop(op.layer);
}
void AttentionPlayer::wait(const Op& op) { state_->of(op).attention->wait(op); }
void AttentionPlayer::land(const Op& op) { state_->of(op).attention->land(op); }
void AttentionPlayer::wait_sent(const Op& op) { state_->of(op).attention->wait_sent(op); }

const AttentionPlayer::Outputs& AttentionPlayer::outputs(int nano_batch, int layer) const {
  return state_->batches.at(nano_batch).outputs.at(layer);
}

ExchangeBytes AttentionPlayer::bytes() const {
  ExchangeBytes sum;
  for (const State::Batch& batch : state_->batches) sum += batch.attention->bytes();
  return sum;
}

}  // namespace distca
