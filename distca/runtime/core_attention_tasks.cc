// The tasks of CoreAttention: computed where their rows lie, and merged.

#include <ATen/ATen.h>

#include <vector>

#include "distca/comm/aten_types.h"
#include "distca/runtime/aten_merge.h"
#include "distca/runtime/core_attention_state.h"

namespace distca {
namespace {

using kernels::Rows;

/// Rows of a [tokens, heads, dim] tensor from `row` on.
Rows rows_of(const at::Tensor& tensor, int64_t row) {
  const int64_t offset = row * tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
  return {.data = static_cast<std::byte*>(tensor.data_ptr()) + offset,
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1)};
}

/// Where a task's rows lie: in the local tensor, or in a part of the block they came in.
Rows resolve(const at::Tensor& local, const std::vector<Block>& blocks, int part,
             const BlockRows& rows) {
  return rows.block == 0 ? rows_of(local, rows.row) : blocks[rows.block - 1].rows(part, rows.row);
}

}  // namespace

void CoreAttention::attend(const Op& op) {
  State& s = *state_;
  HomeRows& home = s.home_of(op);
  Round& round = s.round_of(op);
  if (op.pass == Pass::kForward) {
    s.attend_forward(home, round, op);
  } else {
    s.attend_backward(home, op);
  }
  round.tasks_done += s.exchange_of(op).tasks_of(op.tasks).size();
  s.complete_if_done(home, op);
}

std::vector<kernels::KeyFragment> CoreAttention::State::fragments(
    const HomeRows& home, const std::vector<Block>& received, const ServerTask& task) const {
  std::vector<kernels::KeyFragment> keys;
  keys.reserve(task.kv.size());
  for (const BlockRows& rows : task.kv) {
    keys.push_back({.k = resolve(home.k, received, 1, rows),
                    .v = resolve(home.v, received, 2, rows),
                    .tokens = rows.tokens,
                    .position = rows.position});
  }
  return keys;
}

/// O and LSE of the operation's tasks: where they belong, or into partials (O of the accumulator's
/// type); then of received rows that several tasks share.
void CoreAttention::State::attend_forward(HomeRows& home, Round& round, const Op& op) {
  const AttentionExchange& exchange = exchange_of(op);
  const bool away = op.tasks == TaskSet::kAll || op.tasks == TaskSet::kAway;
  std::vector<Block> received, returned;
  if (away) {
    received = with_homes(op, Content::kQkv, buffer_of(op.reads, BufferRole::kQkvIn));
    returned = with_homes(op, Content::kO, buffer_of(op.writes, BufferRole::kOOut));
  }
  const std::vector<int32_t>& chosen = exchange.tasks_of(op.tasks);
  std::vector<std::vector<kernels::KeyFragment>> keys;
  std::vector<kernels::ForwardTask> whole, partial;
  keys.reserve(chosen.size());
  round.partials.resize(2 * exchange.rows.tasks.size());
  for (const int32_t i : chosen) {
    const ServerTask& task = exchange.rows.tasks[i];
    keys.push_back(fragments(home, received, task));
    kernels::ForwardTask forward{
        .q = resolve(home.q, received, 0, task.q),
        .q_tokens = task.q.tokens,
        .q_position = task.q.position,
        .keys = keys.back(),
        .mask = {.causal = true, .window_left = exchange.shape.window_left}};
    if (task.partial) {
      const auto rows = [&](int64_t dim) {
        return at::empty({task.q.tokens, shape.num_heads, dim}, tensor_options(accumulator));
      };
      round.partials[2 * i] = rows(shape.head_dim_v);
      round.partials[2 * i + 1] = rows(1);
      forward.o = rows_of(round.partials[2 * i], 0);
      forward.lse = rows_of(round.partials[2 * i + 1], 0);
      partial.push_back(forward);
    } else {
      forward.o = resolve(home.o, returned, 0, task.q);
      forward.lse = resolve(home.lse, returned, 1, task.q);
      whole.push_back(forward);
    }
  }
  bytes.copied += kernel.forward(type, whole);
  bytes.copied += kernel.forward(accumulator, partial);
  if (!away) return;
  for (const RowMerge& rows : exchange.rows.merges) {
    if (rows.block == 0) continue;  // parts of it may be elsewhere
    const Block& block = returned[rows.block - 1];
    merge(round.partials, {}, rows, block.rows(0, rows.row), block.rows(1, rows.row));
  }
}

void CoreAttention::State::attend_backward(HomeRows& home, const Op& op) {
  zero_local_gradients(home);
  const AttentionExchange& exchange = exchange_of(op);
  std::vector<Block> received, gradients_received, sums;
  if (op.tasks == TaskSet::kAll || op.tasks == TaskSet::kAway) {
    received = with_homes(op, Content::kQkv, buffer_of(op.reads, BufferRole::kQkvIn));
    gradients_received = with_homes(op, Content::kDO, buffer_of(op.reads, BufferRole::kDOIn));
    const BufferRole role =
        exchange.converts_gradients() ? BufferRole::kAccumulators : BufferRole::kGradientOut;
    sums = with_homes(op, Content::kAccumulator, buffer_of(op.writes, role));
    for (const Block& block : sums) block.fill_with_zeros();
  }
  const std::vector<int32_t>& chosen = exchange.tasks_of(op.tasks);
  std::vector<std::vector<kernels::KeyFragment>> keys;
  std::vector<std::vector<kernels::KeyGradient>> gradients;
  std::vector<kernels::BackwardTask> backward;
  keys.reserve(chosen.size());
  gradients.reserve(chosen.size());
  for (const int32_t i : chosen) {
    const ServerTask& task = exchange.rows.tasks[i];
    keys.push_back(fragments(home, received, task));
    std::vector<kernels::KeyGradient>& task_gradients = gradients.emplace_back();
    for (const BlockRows& rows : task.kv) {
      task_gradients.push_back(
          {.dk = resolve(home.dk, sums, 1, rows), .dv = resolve(home.dv, sums, 2, rows)});
    }
    backward.push_back({.q = resolve(home.q, received, 0, task.q),
                        .d_o = resolve(home.d_o, gradients_received, 0, task.q),
                        .lse = resolve(home.lse, gradients_received, 1, task.q),
                        .delta = resolve(home.delta, gradients_received, 2, task.q),
                        .dq = resolve(home.dq, sums, 0, task.q),
                        .q_tokens = task.q.tokens,
                        .q_position = task.q.position,
                        .keys = keys.back(),
                        .key_gradients = task_gradients,
                        .mask = {.causal = true, .window_left = exchange.shape.window_left}});
  }
  bytes.copied += kernel.backward(backward);
}

/// Merges the parts of some rows into `o` and `lse`: this rank's tasks' and what came home.
void CoreAttention::State::merge(const std::vector<at::Tensor>& partials,
                                 const std::vector<Block>& arrived, const RowMerge& rows,
                                 const Rows& o, const Rows& lse) {
  std::vector<kernels::Partial> parts;
  for (const MergePart& part : rows.parts) {
    if (part.arrived) {
      const Block& block = arrived[part.index];
      parts.push_back(
          {.o = block.rows(0, part.row), .o_type = type, .lse = block.rows(1, part.row)});
    } else {
      parts.push_back({.o = rows_of(partials[2 * part.index], part.row),
                       .o_type = accumulator,
                       .lse = rows_of(partials[2 * part.index + 1], part.row)});
    }
  }
  aten_merge({rows.tokens, shape.num_heads, shape.head_dim_v}, type, parts,
             {.o = o, .o_type = type, .lse = lse}, comm.cuda_device());
  bytes.copied += rows.tokens * shape.num_heads *
                  (shape.head_dim_v * element_bytes(type) + element_bytes(accumulator));
}

void CoreAttention::State::zero_local_gradients(HomeRows& home) {
  if (!home.q.defined() || home.dq.defined()) return;
  const auto sums = tensor_options(accumulator);
  home.dq = at::zeros(home.q.sizes(), sums);
  home.dk = at::zeros(home.k.sizes(), sums);
  home.dv = at::zeros(home.v.sizes(), sums);
}

/// Once every task was computed and what others computed has landed: sums over both.
void CoreAttention::State::complete_if_done(HomeRows& home, const Op& op) {
  const AttentionExchange& exchange = exchange_of(op);
  const Content content = op.pass == Pass::kForward ? Content::kO : Content::kGradient;
  const Round& round = round_of(op);
  if (round.tasks_done < exchange.rows.tasks.size()) return;
  if (!round.landed && !exchange.servers(content).empty()) return;
  const std::vector<Block> arrived = with_servers(op, content, round.arrived);
  if (op.pass == Pass::kForward) {
    for (const RowMerge& rows : exchange.rows.merges) {
      if (rows.block != 0) continue;
      merge(round.partials, arrived, rows, rows_of(home.o, rows.row), rows_of(home.lse, rows.row));
    }
  } else {
    // Local contributions first, then the servers in ascending rank: a fixed order of summation.
    zero_local_gradients(home);  // unless a task has done so
    for (size_t i = 0; i < arrived.size(); ++i) {
      const PeerTransfer& transfer = exchange.rows.sends[i];
      bytes.unpacked += add(arrived[i].part(0), transfer.q, home.dq);
      bytes.unpacked += add(arrived[i].part(1), transfer.kv, home.dk);
      bytes.unpacked += add(arrived[i].part(2), transfer.kv, home.dv);
    }
  }
  home.complete[static_cast<size_t>(op.pass)] = true;
  round_of(op) = {};
}

}  // namespace distca
