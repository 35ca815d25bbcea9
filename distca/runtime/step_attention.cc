#include "distca/runtime/step_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/runtime/layer_attention.h"
#include "distca/runtime/messages_under_way.h"

namespace distca {

struct StepAttention::State {
  const Program& program;
  const ExchangeBuffers& buffers;
  LayerAttention parts;
  int num_layers = 0, num_layer_steps = 0;
  HomeRows nowhere;                      // for operations where this rank only serves
  std::vector<HomeRows> homes;           // [nano-batch x num_layers + layer]
  std::vector<LayerState> layer_states;  // [(exchange x num_layer_steps + layer step) x 2 + pass]
  std::vector<std::array<KernelTasks, kNumTaskSets>> sets_of;     // [exchange][TaskSet]
  std::vector<std::array<std::vector<KernelTasks>, 2>> parts_of;  // [exchange][Pass][part]
  MessagesUnderWay under_way;

  State(const Program& program_in, AttentionKernel& kernel, Communicator& comm,
        const ExchangeBuffers& buffers_in);

  HomeRows& home(int nano_batch, int layer) { return homes.at(nano_batch * num_layers + layer); }
  KernelTasks& tasks_of(const Op& op) {
    return op.part < 0 ? sets_of[op.exchange][static_cast<size_t>(op.tasks)]
                       : parts_of[op.exchange][static_cast<size_t>(op.pass)].at(op.part);
  }
  LayerPass at(const Op& op);
  LayerPass at_its_rows(const Op& op);
};

StepAttention::State::State(const Program& program_in, AttentionKernel& kernel, Communicator& comm,
                            const ExchangeBuffers& buffers_in)
    : program(program_in),
      buffers(buffers_in),
      parts(kernel, comm, program_in.stage.tensor),
      under_way(program_in, comm) {
  DISTCA_CHECK_EQ(kernel.cuda_device(), buffers.cuda_device());
  int nano_batches = 0;
  for (const Op& op : program.ops) {
    nano_batches = std::max(nano_batches, op.nano_batch + 1);
    num_layers = std::max(num_layers, op.layer + 1);
    num_layer_steps = std::max(num_layer_steps, op.layer_step + 1);
  }
  homes.resize(static_cast<size_t>(nano_batches) * num_layers);
  layer_states.resize(2 * program.exchanges.size() * num_layer_steps);
  for (const auto& exchange : program.exchanges) {
    parts.check(*exchange);
    auto& sets = sets_of.emplace_back();
    for (size_t set = 0; set < kNumTaskSets; ++set)
      sets[set] = kernel_tasks(*exchange, pieces_of(*exchange, static_cast<TaskSet>(set)));
  }
  parts_of.resize(program.attention_parts.size());
  for (size_t exchange = 0; exchange < parts_of.size(); ++exchange) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const auto of_pass = static_cast<size_t>(pass);
      for (const AttentionPart& part : program.attention_parts[exchange][of_pass])
        parts_of[exchange][of_pass].push_back(
            kernel_tasks(*program.exchanges[exchange], part.pieces));
    }
  }
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::kCoreAttention)
      parts.prepare(*program.exchanges[op.exchange], tasks_of(op), op.pass);
  }
}

/// The pass that an operation belongs to, with the buffers that it uses.
LayerPass StepAttention::State::at(const Op& op) {
  LayerPass pass{.exchange = *program.exchanges[op.exchange],
                 .home = op.nano_batch < 0 ? nowhere : home(op.nano_batch, op.layer),
                 .layer_state = layer_states[2 * (op.exchange * num_layer_steps + op.layer_step) +
                                             static_cast<int>(op.pass)],
                 .pass = op.pass};
  const auto add = [&](int32_t buffer) {
    if (buffer < 0) return;
    pass.memory[static_cast<size_t>(buffers.role(buffer))] = {
        buffers.data(buffer), static_cast<size_t>(buffers.bytes(buffer))};
  };
  add(op.out);
  add(op.in);
  for (const int32_t buffer : op.reads) add(buffer);
  for (const int32_t buffer : op.writes) add(buffer);
  return pass;
}

/// The pass of an operation that reads or writes rows at home. It has none where this rank only
/// serves.
LayerPass StepAttention::State::at_its_rows(const Op& op) {
  const LayerPass pass = at(op);
  const int64_t tokens = pass.home.q.defined() ? pass.home.q.size(0) : 0;
  DISTCA_CHECK(tokens == pass.exchange.rows.local_tokens, "{}: {} local tokens, its plan has {}",
               describe(op), tokens, pass.exchange.rows.local_tokens);
  return pass;
}

void StepAttention::set_qkv(int nano_batch, int layer, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
  state_->home(nano_batch, layer) = state_->parts.home_of(q, k, v);
}

void StepAttention::drop_qkv(int nano_batch, int layer) {
  HomeRows& home = state_->home(nano_batch, layer);
  DISTCA_CHECK(home.is_complete(Pass::kForward), "Q, K, V of layer {} are still needed", layer);
  home.q = home.k = home.v = at::Tensor();
}

void StepAttention::set_qkv_again(int nano_batch, int layer, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v) {
  HomeRows& home = state_->home(nano_batch, layer);
  state_->parts.set_qkv(home, q, k, v);
}

void StepAttention::set_d_o(int nano_batch, int layer, const at::Tensor& d_o) {
  o(nano_batch, layer);  // a CHECK that it is complete
  state_->parts.set_d_o(state_->home(nano_batch, layer), d_o);
}

void StepAttention::pack(const Op& op) {
  const Content content = content_of(op);
  state_->parts.pack(goes_home(content) ? state_->at(op) : state_->at_its_rows(op), content);
}

void StepAttention::issue(const Op& op) {
  State& s = *state_;
  s.under_way.add(op, s.parts.issue(s.at(op), content_of(op), op.tag, describe(op)));
}

void StepAttention::wait(const Op& op) { state_->under_way.wait(op); }

void StepAttention::wait_sent(const Op& op) { state_->under_way.wait_sent(op); }

void StepAttention::land(const Op& op) {
  // Tasks read what was dispatched where it lies.
  if (op.kind != OpKind::kCombine || state_->program.receives(op).empty()) return;
  state_->parts.land(state_->at_its_rows(op));
}

void StepAttention::compute(const Op& op) {
  State& s = *state_;
  s.parts.compute(s.at_its_rows(op), s.tasks_of(op));
}

const at::Tensor& StepAttention::o(int nano_batch, int layer) const {
  const HomeRows& home = state_->home(nano_batch, layer);
  DISTCA_CHECK(home.is_complete(Pass::kForward), "O of layer {} of nano-batch {} is not complete",
               layer, nano_batch);
  return home.o;
}

QkvGradients StepAttention::take_gradients(int nano_batch, int layer) {
  HomeRows& home = state_->home(nano_batch, layer);
  DISTCA_CHECK(home.is_complete(Pass::kBackward),
               "gradients of layer {} of nano-batch {} are not complete", layer, nano_batch);
  QkvGradients gradients = state_->parts.take_gradients(home);
  drop(nano_batch, layer);
  return gradients;
}

void StepAttention::drop(int nano_batch, int layer) { state_->home(nano_batch, layer) = {}; }

const ExchangeBytes& StepAttention::bytes() const { return state_->parts.bytes(); }

StepAttention::StepAttention(const Program& program, AttentionKernel& kernel, Communicator& comm,
                             const ExchangeBuffers& buffers)
    : state_(std::make_unique<State>(program, kernel, comm, buffers)) {}
StepAttention::~StepAttention() = default;

}  // namespace distca
