#include "distca/program/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace distca {
namespace {

/// "3 7", "-" for none.
std::string numbers(const std::vector<int32_t>& values) {
  return values.empty() ? "-" : fmt::format("{}", fmt::join(values, " "));
}

std::string buffers_of(const Op& op) {
  std::string text;
  const auto add = [&text](const char* what, const std::vector<int32_t>& buffers) {
    if (!buffers.empty()) text += fmt::format(" {} {}", what, fmt::join(buffers, " "));
  };
  add("reads", op.reads);
  add("writes", op.writes);
  if (op.out >= 0) add("from", {op.out});
  if (op.in >= 0) add("into", {op.in});
  return text.empty() ? "-" : text.substr(1);
}

/// "73728 bytes to 1 2", "9830400 bytes from 511 ranks".
std::string peers_of(const char* direction, const std::vector<OpMessage>& messages) {
  constexpr size_t kMostNamed = 4;
  int64_t bytes = 0;
  std::vector<int> peers;
  for (const OpMessage& message : messages) {
    bytes += message.bytes;
    peers.push_back(message.peer);
  }
  return fmt::format("{} bytes {} {}", bytes, direction,
                     peers.size() > kMostNamed ? fmt::format("{} ranks", peers.size())
                                               : fmt::format("{}", fmt::join(peers, " ")));
}

std::string messages_of(const Op& op) {
  std::string text = fmt::format("tag {}", op.tag);
  if (!op.sends.empty()) text += ", " + peers_of("to", op.sends);
  if (!op.receives.empty()) text += ", " + peers_of("from", op.receives);
  return text;
}

std::string megaflops(const Op& op) {
  return op.flops > 0 ? fmt::format("{:.1f}", op.flops * 1e-6) : "-";
}

}  // namespace

const char* op_name(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
      return "embed";
    case OpKind::kPre:
      return "pre";
    case OpKind::kEnter:
      return "enter";
    case OpKind::kResend:
      return "resend";
    case OpKind::kAttend:
      return "attend";
    case OpKind::kLeave:
      return "leave";
    case OpKind::kPost:
      return "post";
    case OpKind::kHandOver:
      return "hand_over";
    case OpKind::kLoss:
      return "loss";
    case OpKind::kGradientSum:
      return "gradient_sum";
    case OpKind::kOptimizer:
      return "optimizer";
  }
  return "?";
}

const char* pass_name(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

const char* task_set_name(TaskSet set) {
  switch (set) {
    case TaskSet::kAll:
      return "all";
    case TaskSet::kHomeFirst:
      return "home, first half";
    case TaskSet::kAway:
      return "away";
    case TaskSet::kHomeRest:
      return "home, rest";
  }
  return "?";
}

const char* buffer_name(BufferRole role) {
  switch (role) {
    case BufferRole::kQkvOut:
      return "qkv_out";
    case BufferRole::kQkvIn:
      return "qkv_in";
    case BufferRole::kOOut:
      return "o_out";
    case BufferRole::kOIn:
      return "o_in";
    case BufferRole::kDOOut:
      return "d_o_out";
    case BufferRole::kDOIn:
      return "d_o_in";
    case BufferRole::kAccumulators:
      return "accumulators";
    case BufferRole::kGradientOut:
      return "gradient_out";
    case BufferRole::kGradientIn:
      return "gradient_in";
    case BufferRole::kActivationOut:
      return "activation_out";
    case BufferRole::kActivationIn:
      return "activation_in";
  }
  return "?";
}

std::string describe(const Op& op) {
  if (op.nano_batch < 0) return op_name(op.kind);
  const std::string tasks =
      op.tasks == TaskSet::kAll ? "" : fmt::format(" ({})", task_set_name(op.tasks));
  if (op.layer < 0)
    return fmt::format("{} {} of nano-batch {}", pass_name(op.pass), op_name(op.kind),
                       op.nano_batch);
  return fmt::format("{} layer {} {}{} of nano-batch {}", pass_name(op.pass), op.layer,
                     op_name(op.kind), tasks, op.nano_batch);
}

std::string print_program(const Program& program) {
  constexpr size_t kColumns = 7;
  std::vector<std::array<std::string, kColumns>> rows = {
      {"op", "stream", "operation", "after", "sent", "buffers", "messages or MFLOP"}};
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const bool travels = op.stream == Stream::kComm;
    rows.push_back({std::to_string(i), travels ? "comm" : "compute", describe(op), numbers(op.deps),
                    numbers(op.sent), buffers_of(op), travels ? messages_of(op) : megaflops(op)});
  }
  std::array<size_t, kColumns> widths{};
  for (const auto& row : rows) {
    for (size_t c = 0; c + 1 < kColumns; ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t c = 0; c < kColumns; ++c) text += fmt::format("{:<{}}  ", row[c], widths[c]);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    text += fmt::format("buffer {}: {}, {} bytes\n", i, buffer_name(program.buffers[i].role),
                        program.buffers[i].bytes);
  }
  return text;
}

}  // namespace distca
