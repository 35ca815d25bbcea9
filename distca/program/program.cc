#include "distca/program/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/program/gradient_exchange.h"
#include "distca/program/tensor_rows.h"

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
std::string peers_of(const char* direction, const MessageList& list) {
  constexpr size_t kMostNamed = 4;
  std::vector<int> peers;
  for (const PeerMessage& message : list.messages) peers.push_back(message.peer);
  return fmt::format("{} bytes {} {}", list.bytes, direction,
                     peers.size() > kMostNamed ? fmt::format("{} ranks", peers.size())
                                               : fmt::format("{}", fmt::join(peers, " ")));
}

std::string messages_of(const Program& program, const Op& op) {
  const MessageList &sends = program.sends(op), &receives = program.receives(op);
  std::string text = fmt::format("tag {}", op.tag);
  if (!sends.empty()) text += ", " + peers_of("to", sends);
  if (!receives.empty()) text += ", " + peers_of("from", receives);
  return text;
}

std::string megaflops(const Op& op) {
  return op.flops > 0 ? fmt::format("{:.1f}", op.flops * 1e-6) : "-";
}

struct KindRow {
  const char* name;
  bool is_of_weights;
};
constexpr std::array<KindRow, kNumOpKinds> kKinds = {{
    {"embed", false},          {"attention_norm", false},  {"pre_attention", false},
    {"dispatch", false},       {"redispatch", false},      {"core_attention", false},
    {"combine", false},        {"out_projection", false},  {"mlp_norm", false},
    {"post_attention", false}, {"weight_gradient", false}, {"loss", false},
    {"gather_rows", false},    {"sum_rows", false},        {"p2p", false},
    {"grad_reduce", true},     {"grad_add", true},         {"grad_gather", true},
    {"grad_norm", true},       {"optimizer", true},        {"weight_gather", true},
}};
static_assert(kKinds.back().name != nullptr, "a kind of operation has no row");

constexpr std::array<const char*, kNumTaskSets> kTaskSetNames = {"all", "home, first half", "away",
                                                                 "home, rest"};

constexpr std::array<const char*, kNumBufferRoles> kBufferNames = {
    "qkv_out",        "qkv_in",        "o_out",        "o_in",        "d_o_out",
    "d_o_in",         "accumulators",  "gradient_out", "gradient_in", "grad_parts",
    "activation_out", "activation_in", "rows",         "parts_out",   "parts_in"};
static_assert(kBufferNames.back() != nullptr, "a role of buffers has no name");

const MessageList& messages(const Program& program, const Op& op, bool sent) {
  static const MessageList none;
  if (!communicates(op.kind)) return none;
  if (op.bucket >= 0) {
    const GradientBucket& bucket = program.gradients->buckets[op.bucket];
    if (op.kind == OpKind::kGradReduce) return sent ? bucket.reduce_sends : bucket.reduce_receives;
    return sent ? bucket.gather_sends : bucket.gather_receives;
  }
  if (is_of_tensor(op.kind)) {
    if (op.nano_batch < 0) return none;
    const TensorRows& rows = program.tensor_rows[op.nano_batch];
    if (op.kind == OpKind::kSumRows) return sent ? rows.part_sends : rows.part_receives;
    if (gathers_pairs(op)) return sent ? rows.pair_sends : rows.pair_receives;
    return sent ? rows.gather_sends : rows.gather_receives;
  }
  if (op.kind == OpKind::kP2p) {
    if (op.is_receive == sent || op.nano_batch < 0) return none;
    const P2pMessages& all = program.p2p_messages[op.nano_batch];
    return (op.pass == Pass::kForward) == sent ? all.with_next : all.with_previous;
  }
  if (op.exchange < 0) return none;
  const AttentionExchange& exchange = *program.exchanges[op.exchange];
  return sent ? exchange.sent(content_of(op)) : exchange.received(content_of(op));
}

}  // namespace

const char* op_name(OpKind kind) { return kKinds[static_cast<size_t>(kind)].name; }
const char* task_set_name(TaskSet set) { return kTaskSetNames[static_cast<size_t>(set)]; }
const char* buffer_name(BufferRole role) { return kBufferNames[static_cast<size_t>(role)]; }

bool is_of_weights(OpKind kind) { return kKinds[static_cast<size_t>(kind)].is_of_weights; }

bool is_of_tensor(OpKind kind) { return kind == OpKind::kGatherRows || kind == OpKind::kSumRows; }

bool communicates(OpKind kind) {
  using enum OpKind;
  return kind == kDispatch || kind == kRedispatch || kind == kCombine || is_of_tensor(kind) ||
         kind == kP2p || kind == kGradReduce || kind == kGradGather || kind == kWeightGather;
}

Content content_of(const Op& op) {
  const bool forward = op.pass == Pass::kForward;
  switch (op.kind) {
    case OpKind::kDispatch:
      return forward ? Content::kQkv : Content::kDO;
    case OpKind::kRedispatch:
      return Content::kQkv;
    case OpKind::kCombine:
      return forward ? Content::kO : Content::kGradient;
    default:
      DISTCA_CHECK(false, "{} is not of an exchange", describe(op));
  }
}

const MessageList& Program::sends(const Op& op) const { return messages(*this, op, /*sent=*/true); }
const MessageList& Program::receives(const Op& op) const {
  return messages(*this, op, /*sent=*/false);
}

const AttentionPart* Program::part_of(const Op& op) const {
  if (op.part < 0) return nullptr;
  return &attention_parts[op.exchange][static_cast<size_t>(op.pass)][op.part];
}

int Program::rank_of(const Op& op, int peer) const {
  const TensorPlace& place = stage.tensor;
  if (is_of_tensor(op.kind)) return server * place.size + peer;
  return op.bucket >= 0 ? peer : place.rank_of(peer);
}

std::string describe(const Op& op) {
  std::string name = op_name(op.kind);
  if (op.tasks != TaskSet::kAll) name += fmt::format(" ({})", task_set_name(op.tasks));
  if (op.part >= 0) name += fmt::format(" (part {})", op.part);
  if (op.kind == OpKind::kP2p) name += op.is_receive ? " (receive)" : " (send)";
  if (op.kind == OpKind::kGatherRows) name += fmt::format(" for {}", op_name(op.of_phase));
  if (op.kind == OpKind::kSumRows) name += fmt::format(" of {}", op_name(op.of_phase));
  if (op.nano_batch >= 0) {
    name += fmt::format(" of nano-batch {}", op.nano_batch);
    if (op.layer >= 0) name = fmt::format("layer {} {}", op.layer, name);
  } else if (op.exchange >= 0) {
    name += fmt::format(" of exchange {}, layer step {}", op.exchange, op.layer_step);
  } else {
    return op.bucket >= 0 ? fmt::format("{} of bucket {}", name, op.bucket) : name;
  }
  return fmt::format("{} {}", pass_name(op.pass), name);
}

int most_in_flight(const Program& program) {
  const auto is_of_nano_batch = [](const Op& op) {
    return op.nano_batch >= 0 && op.stream == Stream::kCompute &&
           op.kind != OpKind::kWeightGradient;
  };
  std::unordered_map<int, size_t> last;  // [nano-batch] its last compute operation
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (is_of_nano_batch(program.ops[i])) last[program.ops[i].nano_batch] = i;
  }
  std::unordered_set<int> in_flight;
  size_t most = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (!is_of_nano_batch(op)) continue;
    in_flight.insert(op.nano_batch);
    most = std::max(most, in_flight.size());
    if (last[op.nano_batch] == i) in_flight.erase(op.nano_batch);
  }
  return static_cast<int>(most);
}

std::string print_program(const Program& program) {
  Table table(
      {"op", "stream", "operation", "wait_for", "wait_sends", "buffers", "messages or MFLOP"});
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const bool travels = op.stream == Stream::kComm;
    table.add_row({std::to_string(i), travels ? "comm" : "compute", describe(op),
                   numbers(op.wait_for), numbers(op.wait_sends), buffers_of(op),
                   travels ? messages_of(program, op) : megaflops(op)});
  }
  std::string text = table.to_string();
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    text += fmt::format("buffer {}: {}, {} bytes\n", i, buffer_name(program.buffers[i].role),
                        program.buffers[i].bytes);
  }
  return text;
}

}  // namespace distca
