// Core attention in parts, and the order of communications within a server.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "distca/program/validate/validate_checks.h"

namespace distca {

AttentionNeeds attention_needs(const Program& program, const Op& op) {
  if (op.part < 0) {
    const bool is_away = op.tasks == TaskSet::kAll || op.tasks == TaskSet::kAway;
    return {.received = is_away, .returned = is_away};
  }
  const AttentionExchange& exchange = *program.exchanges[op.exchange];
  AttentionNeeds needs;
  for (const TaskPiece& piece : program.part_of(op)->pieces) {
    if (piece.task < 0 || piece.task >= std::ssize(exchange.rows.tasks)) continue;
    const ServerTask& task = exchange.rows.tasks[piece.task];
    const auto is_received = [](const BufferRows& rows) { return rows.buffer != 0; };
    needs.returned = needs.returned || is_received(task.q);
    needs.received =
        needs.received || is_received(task.q) || std::ranges::any_of(task.kv, is_received);
  }
  return needs;
}

namespace {

/// The first task of which these parts together have not each row once; -1 if there is none.
int32_t task_not_covered(const Program& program, int exchange, Pass pass,
                         const std::vector<int>& parts) {
  const std::vector<ServerTask>& tasks = program.exchanges[exchange]->rows.tasks;
  std::map<int32_t, std::vector<Range>> rows;
  for (const int part : parts) {
    for (const TaskPiece& piece :
         program.attention_parts[exchange][static_cast<size_t>(pass)][part].pieces)
      rows[piece.task].push_back(piece.queries);
  }
  for (const auto& [task, pieces] : rows) {
    if (task < 0 || task >= std::ssize(tasks)) return task;
  }
  for (int32_t task = 0; task < std::ssize(tasks); ++task) {
    std::vector<Range>& pieces = rows[task];
    std::ranges::sort(pieces);
    int64_t end = 0;
    for (const Range& piece : pieces) {
      if (piece.begin != end || piece.end < piece.begin) return task;
      end = piece.end;
    }
    if (pieces.empty() || end != tasks[task].q.tokens) return task;
  }
  return -1;
}

/// Where a communication stands: all that names it on every rank of its server.
auto place_of(const Op& op) {
  return std::tuple(op.kind, op.pass, op.layer, op.nano_batch, op.exchange, op.layer_step,
                    op.is_receive, op.of_phase);
}

std::vector<int32_t> communications(const Program& program) {
  std::vector<int32_t> ops;
  for (int32_t i = 0; i < std::ssize(program.ops); ++i) {
    if (program.ops[i].stream == Stream::kComm && program.ops[i].bucket < 0) ops.push_back(i);
  }
  return ops;
}

}  // namespace

void check_parts(const Program& program, std::vector<std::string>& wrong) {
  // Most layer steps of an exchange are played in the same parts.
  std::map<std::tuple<int32_t, Pass, int>, std::vector<int>> of_steps;
  for (int32_t i = 0; i < std::ssize(program.ops); ++i) {
    const Op& op = program.ops[i];
    if (op.kind != OpKind::kCoreAttention) continue;
    std::vector<int>& parts = of_steps[{op.exchange, op.pass, op.layer_step}];
    if (op.part < 0) continue;
    parts.push_back(op.part);
    const AttentionExchange& exchange = *program.exchanges[op.exchange];
    const Content result = op.pass == Pass::kForward ? Content::kO : Content::kGradient;
    if (attention_needs(program, op).fills(op.pass) && !exchange.homes(result).empty() &&
        op.writes.empty())
      report_op(wrong, program, i, "does not write what is returned");
  }
  std::map<std::tuple<int32_t, Pass, std::vector<int>>, int32_t> known;
  for (const auto& [step, parts] : of_steps) {
    if (parts.empty()) continue;
    const auto [exchange, pass, number] = step;
    const auto [place, is_new] = known.emplace(std::tuple(exchange, pass, parts), -1);
    if (is_new) place->second = task_not_covered(program, exchange, pass, parts);
    if (place->second < 0) continue;
    report(wrong,
           "{}: the parts of layer step {} of exchange {} do not have all rows of task {} once",
           pass_name(pass), number, exchange, place->second);
  }
}

void check_order_in_servers(std::span<const Program> programs, std::vector<std::string>& wrong) {
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    const int index = programs[rank].stage.tensor.index;
    if (index <= 0 || static_cast<size_t>(index) > rank) continue;
    const Program &first = programs[rank - index], &own = programs[rank];
    const std::vector<int32_t> of_first = communications(first), of_own = communications(own);
    const auto [a, b] = std::ranges::mismatch(
        of_first, of_own, {}, [&](int32_t op) { return place_of(first.ops[op]); },
        [&](int32_t op) { return place_of(own.ops[op]); });
    if (a == of_first.end() && b == of_own.end()) continue;
    report(wrong,
           "ranks {} and {} of a server start their communications in another order: {} and {}",
           rank - index, rank, a == of_first.end() ? "nothing" : numbered(first, *a),
           b == of_own.end() ? "nothing" : numbered(own, *b));
  }
}

}  // namespace distca
