#include "distca/forecast/op_prices.h"

#include <cmath>

#include "distca/base/error.h"
#include "distca/program/gradient_exchange.h"
#include "distca/sim/message_times.h"

namespace distca {
namespace {

int64_t picoseconds(double seconds) { return std::llround(seconds * 1e12); }

/// Bytes of state that AdamW reads and writes for an element: its gradient, the main param and both
/// moments in fp32, and the param that phases read.
double update_bytes(ScalarType compute) {
  return 4 + 3 * 8 + static_cast<double>(element_bytes(compute));
}

}  // namespace

double computed_flops(const Config& config, const Op& op) {
  if (config.train.recompute != Recompute::kFull || op.pass == Pass::kForward) return op.flops;
  const double forward = op.leaves_weights ? op.flops : op.flops / 2;
  const bool is_divided = config.tensor_ranks() > 1;
  if (op.kind == OpKind::kPostAttention) return op.flops + (is_divided ? 2. / 3 : 1) * forward;
  const bool projects = op.kind == OpKind::kPreAttention;
  return op.flops + (projects && (!is_divided || config.model.has_qk_norm()) ? forward : 0);
}

Wire wire_of(const Machine& machine) {
  const auto port = [&](MachineNumber rate, MachineNumber latency_us) {
    return Port{.latency_ps = std::llround(machine.of(latency_us) * 1e6),
                .bytes_per_s = std::llround(machine.of(rate) * 1e9)};
  };
  return {.inside = port(MachineNumber::kInsideGbPerS, MachineNumber::kInsideLatencyUs),
          .between = port(MachineNumber::kBetweenGbPerS, MachineNumber::kBetweenLatencyUs),
          .ranks_per_node = static_cast<int>(machine.of(MachineNumber::kRanksPerNode)),
          .in_order = machine.of(MachineNumber::kInOrder) != 0};
}

MachinePrices::MachinePrices(const Config& config, const Machine& machine,
                             std::span<const Program> programs)
    : config_(config), machine_(&machine) {
  const std::vector<int> ranks = ranks_of(programs);
  for (size_t i = 0; i < programs.size(); ++i) {
    programs_.emplace(ranks[i], &programs[i]);
    for (const Op& op : programs[i].ops) {
      if (op.kind == OpKind::kCoreAttention) add_tasks(programs[i], op);
    }
  }
}

int64_t MachinePrices::compute_ps(int rank, const Op& op) const {
  const Program& program = *programs_.at(rank);
  switch (op.kind) {
    case OpKind::kCoreAttention:
      return attention_ps(program, op);
    case OpKind::kGradAdd:
    case OpKind::kOptimizer:
      return weights_ps(program, op);
    default:
      return picoseconds(computed_flops(config_, op) / (of(MachineNumber::kLinearTflops) * 1e12));
  }
}

CommunicationPrice MachinePrices::communication(int, const Op& op, const MessageList& sends,
                                                const MessageList& receives) const {
  const double copies = of(MachineNumber::kCopyGbPerS) * 1e9;
  return {.pack_ps = picoseconds(static_cast<double>(packed_bytes(op, sends)) / copies),
          .issue_ps = picoseconds(of(MachineNumber::kIssueUs) * 1e-6),
          .land_ps = picoseconds(static_cast<double>(landed_bytes(op, receives)) / copies)};
}

/// Layers of an exchange have the same tasks, so each is priced once.
void MachinePrices::add_tasks(const Program& program, const Op& op) {
  const AttentionExchange& exchange = *program.exchanges[static_cast<size_t>(op.exchange)];
  const auto [entry, is_new] =
      task_ns_.try_emplace({&exchange, op.pass, static_cast<int>(op.tasks), op.part}, 0);
  if (!is_new) return;
  const TaskPrice price(exchange.shape, machine_->attention.get());
  const auto add = [&](const TaskPiece& piece) {
    const TaskPrice::Passes ns = price.passes(piece.queries.size(), pairs_of(exchange, piece));
    entry->second += op.pass == Pass::kForward ? ns.forward : ns.backward;
  };
  if (const AttentionPart* part = program.part_of(op)) {
    for (const TaskPiece& piece : part->pieces) add(piece);
    return;
  }
  for (const int32_t task : exchange.tasks_of(op.tasks))
    add({.task = task, .queries = {0, exchange.rows.tasks[static_cast<size_t>(task)].q.tokens}});
}

int64_t MachinePrices::attention_ps(const Program& program, const Op& op) const {
  const AttentionExchange* const exchange =
      program.exchanges[static_cast<size_t>(op.exchange)].get();
  const int64_t ns = task_ns_.at({exchange, op.pass, static_cast<int>(op.tasks), op.part});
  if (ns == 0) return 0;
  return picoseconds(1e-9 * static_cast<double>(ns) / of(MachineNumber::kAttentionRate) +
                     1e-6 * of(MachineNumber::kAttentionCallUs));
}

/// A rank adds up its slice of a bucket, in fp32, and updates that or, without ZeRO-1, all of it.
int64_t MachinePrices::weights_ps(const Program& program, const Op& op) const {
  if (op.bucket < 0) return 0;
  const GradientBucket& bucket = program.gradients->buckets[static_cast<size_t>(op.bucket)];
  const Range updated = program.gradients->distributed_optimizer ? bucket.own : bucket.elements;
  const double bytes =
      op.kind == OpKind::kOptimizer
          ? update_bytes(config_.model.dtype) * static_cast<double>(updated.size())
          : static_cast<double>(bucket.reduce_receives.bytes + 2 * 4 * bucket.own.size());
  return picoseconds(bytes / (of(MachineNumber::kMemoryGbPerS) * 1e9));
}

}  // namespace distca
