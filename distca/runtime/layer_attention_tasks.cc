// The tasks of LayerAttention: computed where their rows lie, and merged.

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include "distca/comm/as_on_device.h"
#include "distca/comm/aten_types.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/aten_merge.h"
#include "distca/runtime/layer_attention.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {
namespace {

using kernels::Rows;

int64_t tokens_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.size(0) : 0; }

/// Where the rows of received messages, and of what is computed for them, lie; [rows.receives].
struct ServedRows {
  std::vector<MessageRows> qkv;
  std::vector<MessageRows> o;     // forward; empty where no query was received
  std::vector<MessageRows> d_o;   // backward, likewise
  std::vector<MessageRows> sums;  // backward
};

/// Buffers as plan/exchange.h numbers them are the kernel's buffers: 0 the local tensors, i + 1
/// what was received from receives[i]. Kernels leave alone what their pass does not use.
void set_buffers(const HomeRows& home, const ServedRows& served, kernels::TaskList& list) {
  list.queries = {{.tokens = tokens_of(home.q),
                   .q = rows_of(home.q),
                   .o = rows_of(home.o),
                   .lse = rows_of(home.lse),
                   .d_o = rows_of(home.d_o),
                   .delta = rows_of(home.delta),
                   .dq = rows_of(home.dq)}};
  list.keys = {{.tokens = tokens_of(home.k),
                .k = rows_of(home.k),
                .v = rows_of(home.v),
                .dk = rows_of(home.dk),
                .dv = rows_of(home.dv)}};
  for (size_t i = 0; i < served.qkv.size(); ++i) {
    const MessageRows& qkv = served.qkv[i];
    kernels::QueryBuffer queries{};  // without tokens where no task has any of them
    kernels::KeyBuffer keys{.tokens = qkv.tokens(1), .k = qkv.rows(1), .v = qkv.rows(2)};
    if (!served.o.empty() || !served.d_o.empty())
      queries = {.tokens = qkv.tokens(0), .q = qkv.rows(0)};
    if (!served.o.empty()) queries.o = served.o[i].rows(0), queries.lse = served.o[i].rows(1);
    if (!served.d_o.empty()) {
      const MessageRows& d_o = served.d_o[i];
      queries.d_o = d_o.rows(0), queries.lse = d_o.rows(1), queries.delta = d_o.rows(2);
      queries.dq = served.sums[i].rows(0);
    }
    if (!served.sums.empty()) keys.dk = served.sums[i].rows(1), keys.dv = served.sums[i].rows(2);
    list.queries.push_back(queries);
    list.keys.push_back(keys);
  }
}

}  // namespace

KernelTasks kernel_tasks(const AttentionExchange& exchange, std::span<const TaskPiece> pieces) {
  KernelTasks result{task_lists(exchange, pieces)};
  for (const TaskPiece& piece : pieces) {
    const ServerTask& task = exchange.rows.tasks[piece.task];
    const bool ends = piece.queries.end == task.q.tokens;
    result.reads_received = result.reads_received || !is_home(task);
    result.has_returned = result.has_returned || is_returned(task);
    result.ended += ends ? 1 : 0;
    result.returned_ended += ends && is_returned(task) ? 1 : 0;
  }
  return result;
}

void LayerAttention::prepare(const AttentionExchange& exchange, KernelTasks& tasks,
                             Pass pass) const {
  const size_t received = tasks.reads_received ? exchange.rows.receives.size() : 0;
  const auto make = [&](kernels::TaskList& list, TaskLaunches& launches) {
    if (launches.times_made() > 0) return;
    list.keys.resize(1 + received);  // the first ones are local
    kernel_.prepare(pass, list, &launches);
  };
  if (pass == Pass::kBackward) return make(tasks.backward, tasks.backward_launches);
  make(tasks.whole, tasks.whole_launches);
  make(tasks.partial, tasks.partial_launches);
}

void LayerAttention::compute(const LayerPass& layer, KernelTasks& tasks) {
  layer.layer_state.returned_done += tasks.returned_ended;
  layer.pass == Pass::kForward ? compute_forward(layer, tasks) : compute_backward(layer, tasks);
  layer.layer_state.tasks_done += tasks.ended;
  complete_if_done(layer);
}

/// O and LSE of the tasks: where they belong, or into partials (O of the accumulator's type); then
/// of received rows that several tasks share.
void LayerAttention::compute_forward(const LayerPass& layer, KernelTasks& tasks) {
  const AttentionExchange& exchange = layer.exchange;
  LayerState& layer_state = layer.layer_state;
  ServedRows served;
  if (tasks.reads_received)
    served.qkv = with_homes(exchange, Content::kQkv, layer.of(BufferRole::kQkvIn));
  if (tasks.has_returned) served.o = with_homes(exchange, Content::kO, layer.of(BufferRole::kOOut));
  set_buffers(layer.home, served, tasks.whole);
  tasks.partial.queries.clear();
  tasks.partial.keys = tasks.whole.keys;
  layer_state.partials.resize(2 * exchange.rows.tasks.size());
  for (const TaskPiece& piece : tasks.partial_pieces)
    tasks.partial.queries.push_back(partial_buffer(layer, tasks, piece));
  bytes_.copied += kernel_.forward(type_, tasks.whole, &tasks.whole_launches);
  bytes_.copied += kernel_.forward(accumulator_, tasks.partial, &tasks.partial_launches);
  if (!tasks.has_returned) return;
  const auto returned = std::ranges::count_if(exchange.rows.tasks, is_returned);
  if (std::cmp_less(layer_state.returned_done, returned)) return;
  for (const RowMerge& rows : exchange.rows.merges) {
    if (rows.buffer == 0) continue;  // parts of it may be elsewhere
    const MessageRows& message = served.o[rows.buffer - 1];
    merge(layer_state.partials, {}, rows, message.rows(0, rows.row), message.rows(1, rows.row));
  }
}

/// Where the piece's O and LSE go, which are partial. Its task has one memory for all pieces.
kernels::QueryBuffer LayerAttention::partial_buffer(const LayerPass& layer,
                                                    const KernelTasks& tasks,
                                                    const TaskPiece& piece) const {
  const BufferRows& q = layer.exchange.rows.tasks[piece.task].q;
  at::Tensor& o = layer.layer_state.partials[2 * piece.task];
  at::Tensor& lse = layer.layer_state.partials[2 * piece.task + 1];
  const int64_t begin = piece.queries.begin;
  if (begin == 0) {
    const auto rows = [&](int64_t dim) {
      return at::empty({q.tokens, shape_.num_heads, dim}, tensor_options(accumulator_));
    };
    o = rows(shape_.head_dim_v);
    lse = rows(1);
  }
  return {.tokens = piece.queries.size(),
          .q = kernels::shifted(tasks.whole.queries[q.buffer].q, type_, q.row + begin, 0),
          .o = rows_of(o, begin),
          .lse = rows_of(lse, begin)};
}

void LayerAttention::compute_backward(const LayerPass& layer, KernelTasks& tasks) {
  zero_local_gradients(layer.home);
  const AttentionExchange& exchange = layer.exchange;
  ServedRows served;
  if (tasks.reads_received) {
    const BufferRole sums =
        exchange.converts_gradients() ? BufferRole::kAccumulators : BufferRole::kGradientOut;
    served.qkv = with_homes(exchange, Content::kQkv, layer.of(BufferRole::kQkvIn));
    served.sums = with_homes(exchange, Content::kAccumulator, layer.of(sums));
    if (!std::exchange(layer.layer_state.sums_cleared, true)) {
      RowMoves moves(comm_.cuda_device());
      for (const MessageRows& message : served.sums) moves.clear(message.flat());
      moves.play();
    }
  }
  if (tasks.has_returned)
    served.d_o = with_homes(exchange, Content::kDO, layer.of(BufferRole::kDOIn));
  set_buffers(layer.home, served, tasks.backward);
  bytes_.copied += kernel_.backward(tasks.backward, &tasks.backward_launches);
}

/// Merges the parts of some rows into `o` and `lse`: this rank's tasks' and what came home.
void LayerAttention::merge(const std::vector<at::Tensor>& partials,
                           const std::vector<MessageRows>& arrived, const RowMerge& rows,
                           const Rows& o, const Rows& lse) {
  std::vector<kernels::Partial> parts;
  for (const MergePart& part : rows.parts) {
    if (part.arrived) {
      const MessageRows& message = arrived[part.index];
      parts.push_back(
          {.o = message.rows(0, part.row), .o_type = type_, .lse = message.rows(1, part.row)});
    } else {
      parts.push_back({.o = rows_of(partials[2 * part.index], part.row),
                       .o_type = accumulator_,
                       .lse = rows_of(partials[2 * part.index + 1], part.row)});
    }
  }
  aten_merge({rows.tokens, shape_.num_heads, shape_.head_dim_v}, type_, parts,
             {.o = o, .o_type = type_, .lse = lse}, comm_.cuda_device());
  bytes_.copied += rows.tokens * shape_.num_heads *
                   (shape_.head_dim_v * element_bytes(type_) + element_bytes(accumulator_));
}

/// Local contributions come first, then the servers in ascending rank: a fixed order of summation.
void LayerAttention::add_arrived_gradients(const LayerPass& layer,
                                           const std::vector<MessageRows>& arrived) {
  HomeRows& home = layer.home;
  zero_local_gradients(home);  // unless a task has done so
  const bool widens =
      as_on_device(comm_.cuda_device()) && layer.exchange.types.gradient != accumulator_;
  RowMoves moves(comm_.cuda_device());
  for (size_t i = 0; i < arrived.size(); ++i) {
    const PeerTransfer& transfer = layer.exchange.rows.sends[i];
    at::Tensor wide;  // sums of rows in one type go together
    if (widens) wide = arrived[i].flat().to(aten_type(accumulator_));
    const MessageRows message =
        widens ? arrived[i].in_type(accumulator_, static_cast<std::byte*>(wide.data_ptr()))
               : arrived[i];
    for (const auto& [part, ranges, sums] :
         {std::tuple(0, &transfer.q, &home.dq), std::tuple(1, &transfer.kv, &home.dk),
          std::tuple(2, &transfer.kv, &home.dv)}) {
      add(message.part(part), *ranges, *sums, moves);
      bytes_.unpacked += static_cast<int64_t>(arrived[i].part(part).nbytes());
    }
    moves.play();
  }
}

/// Once every task was computed and what others computed has landed: sums over both.
void LayerAttention::complete_if_done(const LayerPass& layer) {
  auto& [exchange, home, layer_state, pass, memory] = layer;
  const Content content = pass == Pass::kForward ? Content::kO : Content::kGradient;
  if (layer_state.tasks_done < exchange.rows.tasks.size()) return;
  if (!layer_state.landed && !exchange.servers(content).empty()) return;
  const std::vector<MessageRows> arrived = with_servers(exchange, content, layer_state.arrived);
  if (pass == Pass::kForward) {
    for (const RowMerge& rows : exchange.rows.merges) {
      if (rows.buffer != 0) continue;
      merge(layer_state.partials, arrived, rows, rows_of(home.o, rows.row),
            rows_of(home.lse, rows.row));
    }
  } else {
    add_arrived_gradients(layer, arrived);
  }
  home.complete[static_cast<size_t>(pass)] = true;
  layer_state = {};
}

}  // namespace distca
