// Buffers and messages of one rank.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "distca/program/validate/validate_checks.h"

namespace distca {
namespace {

/// The roles of the buffers that a communication sends from and receives into.
struct Roles {
  BufferRole out, in;
};
std::optional<Roles> roles_of(const Op& op) {
  const bool forward = op.pass == Pass::kForward;
  switch (op.kind) {
    case OpKind::kDispatch:
      return forward ? Roles{BufferRole::kQkvOut, BufferRole::kQkvIn}
                     : Roles{BufferRole::kDOOut, BufferRole::kDOIn};
    case OpKind::kRedispatch:
      return Roles{BufferRole::kQkvOut, BufferRole::kQkvIn};
    case OpKind::kCombine:
      return forward ? Roles{BufferRole::kOOut, BufferRole::kOIn}
                     : Roles{BufferRole::kGradientOut, BufferRole::kGradientIn};
    case OpKind::kP2p:
      return Roles{BufferRole::kActivationOut, BufferRole::kActivationIn};
    case OpKind::kGradReduce:
      return Roles{BufferRole::kGradParts, BufferRole::kGradParts};
    case OpKind::kGatherRows:
      return Roles{BufferRole::kRows, BufferRole::kRows};
    case OpKind::kSumRows:
      return Roles{BufferRole::kPartsOut, BufferRole::kPartsIn};
    default:
      return std::nullopt;
  }
}

/// Put in its place by the exchange itself, once it has landed.
bool lands_at_home(BufferRole role) {
  return role == BufferRole::kOIn || role == BufferRole::kGradientIn ||
         role == BufferRole::kActivationIn || role == BufferRole::kPartsIn;
}

/// Does the phase `reader` of a layer read what this kGatherRows has gathered?
bool reads_rows(const Op& reader, const Op& gather) {
  if (reader.nano_batch != gather.nano_batch || reader.layer != gather.layer ||
      reader.pass != gather.pass)
    return false;
  // In backward, the output projection's rows come with those of pre-attention.
  return reader.kind == gather.of_phase ||
         (reader.pass == Pass::kBackward && reader.kind == OpKind::kPreAttention &&
          gather.of_phase == OpKind::kOutProjection);
}

/// May `reader` use what `writer` has written into a buffer of this role?
bool is_meant(const Op& reader, BufferRole role, const Op& writer) {
  if (reader.exchange != writer.exchange || reader.layer_step != writer.layer_step) return false;
  const bool same_pass = reader.pass == writer.pass;
  switch (role) {
    case BufferRole::kQkvIn:
      return reader.kind == OpKind::kCoreAttention &&
             ((writer.kind == OpKind::kDispatch && writer.pass == Pass::kForward) ||
              (writer.kind == OpKind::kRedispatch && reader.pass == Pass::kBackward));
    case BufferRole::kDOIn:
      return same_pass && reader.kind == OpKind::kCoreAttention && writer.kind == OpKind::kDispatch;
    case BufferRole::kOOut:
    case BufferRole::kAccumulators:
      return same_pass && reader.kind == OpKind::kCombine && writer.kind == OpKind::kCoreAttention;
    case BufferRole::kGradientOut:
      return same_pass && reader.kind == OpKind::kCombine &&
             (writer.kind == OpKind::kCoreAttention || &writer == &reader);
    case BufferRole::kQkvOut:
    case BufferRole::kDOOut:
    case BufferRole::kActivationOut:
      return &writer == &reader;
    case BufferRole::kGradParts:
      return reader.kind == OpKind::kGradAdd && writer.kind == OpKind::kGradReduce &&
             reader.bucket == writer.bucket;
    case BufferRole::kRows:
      return writer.kind == OpKind::kGatherRows &&
             (&writer == &reader || reads_rows(reader, writer));
    case BufferRole::kPartsOut:
      return reader.kind == OpKind::kSumRows && reader.of_phase == writer.kind &&
             reader.nano_batch == writer.nano_batch && reader.layer == writer.layer && same_pass;
    case BufferRole::kPartsIn:
    case BufferRole::kOIn:
    case BufferRole::kGradientIn:
    case BufferRole::kActivationIn:
      return false;
  }
  return false;
}

class Buffers : Checker {
 public:
  using Checker::Checker;

  void check() {
    states_.resize(program_.buffers.size());
    for (int32_t i = 0; i < std::ssize(program_.ops); ++i) {
      const Op& op = program_.ops[i];
      check_roles(i);
      for (int32_t buffer : op.reads) read(i, buffer);
      const How how = op.stream == Stream::kCompute ? How::kComputed : How::kPacked;
      for (int32_t buffer : op.writes) write(i, buffer, how);
      if (op.kind == OpKind::kGatherRows) {
        gather(i);
        continue;
      }
      if (op.in >= 0) write(i, op.in, How::kReceived);
      if (op.out >= 0) {
        read(i, op.out);
        states_[op.out].senders.push_back(i);
      }
    }
    for (int32_t buffer = 0; buffer < std::ssize(states_); ++buffer) expect_read(buffer);
  }

 private:
  enum class How { kComputed, kPacked, kReceived };
  struct State {
    int32_t writer = -1;
    How how = How::kComputed;
    bool was_read = false;
    int32_t last_compute = -1;     // that has used it since
    std::vector<int32_t> senders;  // since
  };

  std::string named(int32_t buffer) const {
    return fmt::format("buffer {} ({})", buffer, buffer_name(program_.buffers[buffer].role));
  }

  void check_roles(int32_t i) {
    const Op& op = program_.ops[i];
    const std::optional<Roles> roles = roles_of(op);
    const auto expect = [&](const char* what, int32_t buffer, BufferRole role) {
      if (buffer < 0 || program_.buffers[buffer].role == role) return;
      say(i, "{} {}, not {}", what, named(buffer), buffer_name(role));
    };
    if (roles) {
      expect("sends from", op.out, roles->out);
      expect("receives into", op.in, roles->in);
      for (int32_t buffer : op.writes) {
        if (buffer != op.out) say(i, "packs into {}, not what it sends", named(buffer));
      }
      return;
    }
    for (int32_t buffer : op.writes) {
      const BufferRole role = program_.buffers[buffer].role;
      const bool forward = op.pass == Pass::kForward;
      const bool leaves_parts =
          op.kind == OpKind::kPostAttention ||
          op.kind == (forward ? OpKind::kOutProjection : OpKind::kPreAttention) ||
          (forward && op.kind == OpKind::kEmbed);
      const bool meant =
          op.kind == OpKind::kCoreAttention
              ? (forward ? role == BufferRole::kOOut
                         : role == BufferRole::kAccumulators || role == BufferRole::kGradientOut)
              : leaves_parts && role == BufferRole::kPartsOut;
      if (!meant) say(i, "writes {}, which is not its", named(buffer));
    }
  }

  void read(int32_t i, int32_t buffer) {
    State& state = states_[buffer];
    if (state.writer < 0) {
      say(i, "reads {}, which nobody has written", named(buffer));
      return;
    }
    if (!is_meant(program_.ops[i], program_.buffers[buffer].role, program_.ops[state.writer])) {
      say(i, "reads {} as {} has written it", named(buffer), numbered(state.writer));
    } else if (state.writer != i && !is_over(state, i)) {
      say(i, "reads {} and does not wait for {}", named(buffer), numbered(state.writer));
    }
    state.was_read = true;
    if (program_.ops[i].stream == Stream::kCompute) state.last_compute = i;
  }

  /// Does core attention in parts go on with what another part has begun?
  bool goes_on(int32_t i, const State& state) const {
    if (state.writer < 0) return false;
    const Op &op = program_.ops[i], &before = program_.ops[state.writer];
    return op.part >= 0 && before.part >= 0 && op.exchange == before.exchange &&
           op.layer_step == before.layer_step && op.pass == before.pass;
  }

  void write(int32_t i, int32_t buffer, How how) {
    State& state = states_[buffer];
    if (!goes_on(i, state)) expect_read(buffer);
    const auto still = [&](int32_t user, const char* what) {
      say(i, "writes {}, which {} may still {}", named(buffer), numbered(user), what);
    };
    if (state.last_compute >= 0 && !order_.ended(state.last_compute, i)) {
      still(state.last_compute, "use");
    }
    for (int32_t sender : state.senders) {
      if (!has_used(sender, i)) still(sender, "send from");
    }
    if (state.writer >= 0 && state.how == How::kReceived && !is_over(state, i)) {
      still(state.writer, "receive into");
    }
    state = {.writer = i, .how = how};
    if (how == How::kComputed) state.last_compute = i;
  }

  /// Has this operation, which has sent from a buffer, read all that it reads of it? A kSumRows
  /// adds its own rows, too, when it has landed.
  bool has_used(int32_t sender, int32_t i) const {
    return order_.left(sender, i) &&
           (program_.ops[sender].kind != OpKind::kSumRows || order_.landed(sender, i));
  }
  /// Has the buffer been written in full when `i` begins? What is packed is there at once.
  bool is_over(const State& state, int32_t i) const {
    return state.how == How::kPacked ||
           (state.how == How::kComputed ? order_.ended(state.writer, i)
                                        : order_.landed(state.writer, i));
  }

  /// Sends what it has packed, and receives the other rows next to it: in one buffer.
  void gather(int32_t i) {
    const Op& op = program_.ops[i];
    const std::vector<int32_t> packed = op.out < 0 ? std::vector<int32_t>() : std::vector{op.out};
    if (op.in != op.out || op.writes != packed)
      return say(i, "does not pack, send and receive in one buffer");
    if (op.out < 0) return;
    states_[op.out].how = How::kReceived;
    states_[op.out].senders.push_back(i);
  }

  void expect_read(int32_t buffer) {
    const State& state = states_[buffer];
    if (state.writer < 0 || state.was_read || lands_at_home(program_.buffers[buffer].role)) return;
    say(state.writer, "writes {}, which nobody reads", named(buffer));
  }

  std::vector<State> states_;  // [buffer]
};

/// "exchange 0, Q, K, V with homes": messages that all layers share. Those that go to several
/// ranks from the same place overlap; rows between the ranks of a server lie without gaps.
struct Lies {
  int64_t alignment = kMessageAlignment;
  bool overlap = false;
};
void check_list(const std::string& name, const MessageList& list, std::vector<std::string>& wrong,
                const Lies& lies = {}) {
  int64_t end = 0, bytes = 0;
  for (size_t i = 0; i < list.messages.size(); ++i) {
    const PeerMessage& message = list.messages[i];
    const auto expect = [&](bool is_so, std::string_view what) {
      if (is_so) return;
      report(wrong, "{}: {} bytes at {} with rank {}: {}", name, message.bytes, message.offset,
             message.peer, what);
    };
    expect(message.bytes > 0, "nothing");
    expect(message.offset % lies.alignment == 0, "not aligned");
    expect(lies.overlap || message.offset >= end, "within the message before");
    expect(message.offset >= 0 && message.bytes <= list.buffer_bytes &&
               message.offset <= list.buffer_bytes - message.bytes,
           "beyond the end");
    expect(message.peer >= 0 && (i == 0 || message.peer > list.messages[i - 1].peer),
           "peers must ascend");
    end = std::max(end, message.offset + message.bytes);
    bytes += message.bytes;
  }
  if (bytes != list.bytes)
    report(wrong, "{}: is said to have {} bytes, its messages have {}", name, list.bytes, bytes);
}

void check_exchanges(const Program& program, std::vector<std::string>& wrong) {
  constexpr const char* kContents[kNumContents] = {"Q, K, V", "O, LSE", "dO, LSE, delta",
                                                   "dQ, dK, dV", "sums of dQ, dK, dV"};
  for (size_t i = 0; i < program.exchanges.size(); ++i) {
    for (size_t content = 0; content < kNumContents; ++content) {
      const std::string name = fmt::format("exchange {}, {}", i, kContents[content]);
      const AttentionExchange& exchange = *program.exchanges[i];
      check_list(name + " with servers", exchange.with_servers[content], wrong);
      check_list(name + " with homes", exchange.with_homes[content], wrong);
    }
  }
}

/// Each rank's rows go where they are expected: gathered ones to their place among all, parts to
/// the rank that has the rows.
void check_tensor_rows(const Program& program, std::vector<std::string>& wrong) {
  const TensorPlace& place = program.stage.tensor;
  for (size_t nano = 0; nano < program.tensor_rows.size(); ++nano) {
    const TensorRows& rows = program.tensor_rows[nano];
    const Range own = place.part(rows.rows);
    const auto check = [&](const char* what, const MessageList& list, int64_t row_bytes,
                           bool overlap, const auto& of_peer) {
      const std::string name = fmt::format("rows of nano-batch {}, {}", nano, what);
      check_list(name, list, wrong, {.alignment = row_bytes, .overlap = overlap});
      for (int peer = 0; peer < place.size; ++peer) {
        const Range expected = peer == place.index ? Range{} : of_peer(peer);
        const PeerMessage* const message = list.with(peer);
        const Range found = message == nullptr
                                ? Range{expected.begin, expected.begin}
                                : Range{message->offset / row_bytes,
                                        (message->offset + message->bytes) / row_bytes};
        if (found == expected || (expected.empty() && found.empty())) continue;
        report(wrong, "{}: rows {} to {} with rank {} of the server, not {} to {}", name,
               found.begin, found.end, peer, expected.begin, expected.end);
      }
    };
    const auto its_own = [&](int peer) { return TensorPlace{place.size, peer}.part(rows.rows); };
    const auto ours = [&](int) { return own; };
    const auto part = [&](int peer) {
      const int64_t before = (peer < place.index ? peer : peer - 1) * own.size();
      return Range{before, before + own.size()};
    };
    check("gathered from here", rows.gather_sends, rows.row_bytes, true, ours);
    check("gathered from others", rows.gather_receives, rows.row_bytes, false, its_own);
    check("pairs from here", rows.pair_sends, 2 * rows.row_bytes, true, ours);
    check("pairs from others", rows.pair_receives, 2 * rows.row_bytes, false, its_own);
    check("parts from here", rows.part_sends, rows.row_bytes, false, its_own);
    check("parts from others", rows.part_receives, rows.row_bytes, false, part);
  }
}

/// The messages of one direction of an operation, and their buffer.
void check_room(const Program& program, int32_t op, const char* direction, const MessageList& list,
                int32_t buffer, std::vector<std::string>& wrong) {
  // Rows of a rank that has none to send or receive still have their place among all.
  const bool has_room = is_of_tensor(program.ops[op].kind) && buffer >= 0;
  if (list.empty() != (buffer < 0) && !has_room) {
    report_op(wrong, program, op, "has {} messages to {} and {} buffer", list.messages.size(),
              direction, buffer < 0 ? "no" : "a");
  } else if (buffer >= 0 && list.buffer_bytes > program.buffers[buffer].bytes) {
    report_op(wrong, program, op, "would {} {} bytes in buffer {}, which has {}", direction,
              list.buffer_bytes, buffer, program.buffers[buffer].bytes);
  }
}

}  // namespace

void check_buffers(const Program& program, const ProgramOrder& order,
                   std::vector<std::string>& wrong) {
  Buffers(program, order, wrong).check();
}

void check_messages(const Program& program, std::vector<std::string>& wrong) {
  check_exchanges(program, wrong);
  check_tensor_rows(program, wrong);
  std::unordered_map<uint32_t, int32_t> tags;
  for (int32_t i = 0; i < std::ssize(program.ops); ++i) {
    const Op& op = program.ops[i];
    const MessageList &sends = program.sends(op), &receives = program.receives(op);
    // Gradients and weights travel from where they are, and but for parts of sums to there.
    if (op.bucket < 0) check_room(program, i, "send", sends, op.out, wrong);
    if (op.bucket < 0 || op.kind == OpKind::kGradReduce)
      check_room(program, i, "receive", receives, op.in, wrong);
    if (sends.empty() && receives.empty()) continue;
    const auto [other, is_new] = tags.emplace(op.tag, i);
    if (!is_new)
      report_op(wrong, program, i, "has tag {} of {}", op.tag, numbered(program, other->second));
  }
}

}  // namespace distca
