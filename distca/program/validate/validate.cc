#include "distca/program/validate/validate.h"

#include <fmt/format.h>

#include <algorithm>

#include "distca/program/gradient_exchange.h"
#include "distca/program/validate/validate_checks.h"

namespace distca {
namespace {

bool has_part(const Program& program, const Op& op) {
  return op.kind == OpKind::kCoreAttention && op.tasks == TaskSet::kAll && op.exchange >= 0 &&
         static_cast<size_t>(op.exchange) < program.attention_parts.size() &&
         op.part < std::ssize(program.attention_parts[op.exchange][static_cast<size_t>(op.pass)]);
}

/// Dependencies, buffers and exchanges that exist: without them nothing else can be said.
void check_references(const Program& program, std::vector<std::string>& wrong) {
  const auto num_buffers = std::ssize(program.buffers),
             num_exchanges = std::ssize(program.exchanges),
             num_buckets = program.gradients ? std::ssize(program.gradients->buckets) : 0;
  for (int32_t i = 0; i < std::ssize(program.ops); ++i) {
    const Op& op = program.ops[i];
    for (const auto& [what, list] :
         {std::pair{"depends on", &op.wait_for}, {"waits for", &op.wait_sends}}) {
      for (int32_t other : *list) {
        if (other >= 0 && other < i) continue;
        report_op(wrong, program, i, "{} {}, which does not come before it", what, other);
      }
    }
    for (int32_t other : op.wait_sends) {
      if (other < 0 || other >= i || program.ops[other].stream == Stream::kComm) continue;
      report_op(wrong, program, i, "waits for the sends of {}, which is no exchange",
                numbered(program, other));
    }
    if (op.bucket >= num_buckets)
      report_op(wrong, program, i, "belongs to bucket {} of {}", op.bucket, num_buckets);
    const bool is_p2p = op.kind == OpKind::kP2p;
    if (is_p2p && (op.nano_batch < 0 || op.nano_batch >= std::ssize(program.p2p_messages))) {
      report_op(wrong, program, i, "sends or receives nano-batch {} of {}", op.nano_batch,
                program.p2p_messages.size());
    }
    if (is_of_tensor(op.kind) &&
        (op.nano_batch < 0 || op.nano_batch >= std::ssize(program.tensor_rows))) {
      report_op(wrong, program, i, "carries rows of nano-batch {} of {}", op.nano_batch,
                program.tensor_rows.size());
    }
    const bool has_exchange = op.bucket < 0 && !is_p2p && !is_of_tensor(op.kind) &&
                              (op.stream == Stream::kComm || op.kind == OpKind::kCoreAttention);
    if (has_exchange && (op.exchange < 0 || op.exchange >= num_exchanges || op.layer_step < 0)) {
      report_op(wrong, program, i, "belongs to exchange {} of {}, layer step {}", op.exchange,
                num_exchanges, op.layer_step);
    }
    if (op.part >= 0 && !has_part(program, op))
      report_op(wrong, program, i, "computes a part that is nowhere");
    std::vector<int32_t> buffers = op.reads;
    buffers.insert(buffers.end(), op.writes.begin(), op.writes.end());
    if (op.out != -1) buffers.push_back(op.out);
    if (op.in != -1) buffers.push_back(op.in);
    for (int32_t buffer : buffers) {
      if (buffer < 0 || buffer >= num_buffers)
        report_op(wrong, program, i, "uses buffer {} of {}", buffer, num_buffers);
    }
  }
}

}  // namespace

std::string numbered(const Program& program, int32_t op) {
  return fmt::format("operation {} ({})", op, describe(program.ops[op]));
}

ProgramOrder::ProgramOrder(const Program& program) : program_(program) {
  const auto num_ops = static_cast<int32_t>(program.ops.size());
  computed_before_.assign(num_ops, -1);
  landed_by_.assign(num_ops, num_ops);
  left_by_.assign(num_ops, num_ops);
  int32_t last_compute = -1;
  for (int32_t i = 0; i < num_ops; ++i) {
    const Op& op = program.ops[i];
    if (op.stream == Stream::kCompute) {
      computed_before_[i] = last_compute;
      last_compute = i;
      continue;
    }
    for (int32_t dep : op.wait_for) {
      const bool computes = program.ops[dep].stream == Stream::kCompute;
      computed_before_[i] = std::max(computed_before_[i], computes ? dep : computed_before_[dep]);
    }
  }
  for (int32_t i = num_ops - 1; i >= 0; --i) {
    const Op& op = program.ops[i];
    // Whoever waits for an exchange waits for what the exchange has waited for.
    const int32_t from = op.stream == Stream::kCompute ? i : landed_by_[i];
    for (int32_t dep : op.wait_for) landed_by_[dep] = std::min(landed_by_[dep], from);
    for (int32_t sender : op.wait_sends) left_by_[sender] = std::min(left_by_[sender], from);
  }
}

bool ProgramOrder::ended(int32_t a, int32_t b) const {
  return program_.ops[b].stream == Stream::kCompute || a <= computed_before_[b];
}

bool ProgramOrder::landed(int32_t a, int32_t b) const {
  const Op& op = program_.ops[b];
  if (op.stream == Stream::kCompute) return landed_by_[a] <= b;
  if (landed_by_[a] <= computed_before_[b]) return true;
  // Or before a communication that this one waits for began.
  return std::ranges::any_of(op.wait_for, [&](int32_t dep) {
    return dep == a || (dep > a && program_.ops[dep].stream == Stream::kComm && landed(a, dep));
  });
}

bool ProgramOrder::left(int32_t a, int32_t b) const {
  const Op& op = program_.ops[b];
  if (op.stream == Stream::kCompute) return left_by_[a] <= b;
  return left_by_[a] <= computed_before_[b] ||
         std::ranges::find(op.wait_sends, a) != op.wait_sends.end();
}

bool ProgramOrder::is_over(int32_t a, int32_t b) const {
  return program_.ops[a].stream == Stream::kCompute ? ended(a, b) : landed(a, b);
}

std::vector<std::string> validate(const Program& program) {
  std::vector<std::string> wrong;
  check_references(program, wrong);
  if (!wrong.empty()) return wrong;
  const ProgramOrder order(program);
  check_order(program, order, wrong);
  check_complete(program, wrong);
  check_parts(program, wrong);
  check_messages(program, wrong);
  check_buffers(program, order, wrong);
  check_gradients(program, order, wrong);
  return wrong;
}

std::vector<std::string> validate(std::span<const Program> programs) {
  std::vector<std::string> wrong;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    for (const std::string& line : validate(programs[rank]))
      report(wrong, "rank {}: {}", rank, line);
  }
  // Waits between ranks mean something only where each program by itself can be played.
  if (wrong.empty()) check_ranks(programs, wrong);
  if (wrong.empty()) check_stages(programs, wrong);
  if (wrong.empty()) check_slices(programs, wrong);
  return wrong;
}

}  // namespace distca
