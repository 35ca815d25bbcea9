// Checks that every operation comes after those that it needs. validate_complete.cc checks what all
// ranks or a whole stage must have.

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "distca/program/validate/validate_checks.h"

namespace distca {
namespace {

class Sequence : Checker {
 public:
  using Checker::Checker;

  void check() {
    const auto num_ops = static_cast<int32_t>(program_.ops.size());
    at_home_.reserve(num_ops);
    of_exchanges_.reserve(num_ops);
    attention_ops_.reserve(num_ops / 4);
    for (int32_t i = 0; i < num_ops; ++i) enlist(i);
    for (int32_t i = 0; i < num_ops; ++i) {
      const Op& op = program_.ops[i];
      if (communicates(op.kind) != (op.stream == Stream::kComm)) say(i, "is on the wrong stream");
      if (op.nano_batch < 0 && op.exchange < 0) {
        check_of_step(i);
      } else {
        check_of_pass(i);
      }
    }
    check_completeness();
  }

 private:
  /// Core attention of a pass of a layer step.
  struct AttentionOps {
    int32_t first = -1, last = -1;
    int32_t filled = -1;  // the last one that writes what is returned
    uint32_t sets = 0;    // a bit each
    bool in_parts = false;
  };
  /// A kind of operation; of kGatherRows and kSumRows with the phase whose rows they carry.
  struct Kind {
    Kind(OpKind kind_in, OpKind of_phase_in = OpKind::kEmbed)  // NOLINT: most kinds have no phase
        : kind(kind_in), of_phase(is_of_tensor(kind_in) ? of_phase_in : OpKind::kEmbed) {}
    OpKind kind, of_phase;
  };
  static Kind kind_of(const Op& op) { return {op.kind, op.of_phase}; }
  static bool is_same(const Op& op, Kind kind) {
    return op.kind == kind.kind && kind_of(op).of_phase == kind.of_phase;
  }
  static uint64_t key(Kind kind, Pass pass, int a, int b) {
    const uint64_t whole = uint64_t(kind.kind) * kNumOpKinds + uint64_t(kind.of_phase);
    return ((whole * 2 + uint64_t(pass)) << 48) ^ (uint64_t(uint32_t(a + 1)) << 24) ^
           uint64_t(uint32_t(b + 1));
  }
  /// Returns true for operations of a nano-batch that are played in both passes.
  static bool is_phase(const Op& op) {
    return op.kind == OpKind::kEmbed || op.kind == OpKind::kAttentionNorm ||
           op.kind == OpKind::kPreAttention || op.kind == OpKind::kOutProjection ||
           op.kind == OpKind::kMlpNorm || op.kind == OpKind::kPostAttention ||
           op.kind == OpKind::kLoss;
  }
  bool is_divided() const { return stage_.tensor.size > 1; }
  // The first and the last operation of a layer at home, and those on both sides of its core
  // attention.
  Kind first_of_layer(Pass pass) const {
    if (pass == Pass::kForward)
      return is_divided() ? OpKind::kAttentionNorm : OpKind::kPreAttention;
    return is_divided() ? Kind(OpKind::kGatherRows, OpKind::kPostAttention)
                        : Kind(OpKind::kPostAttention);
  }
  Kind last_of_layer(Pass pass) const {
    if (pass == Pass::kForward)
      return is_divided() ? Kind(OpKind::kSumRows, OpKind::kPostAttention)
                          : Kind(OpKind::kPostAttention);
    return is_divided() ? OpKind::kAttentionNorm : OpKind::kPreAttention;
  }
  OpKind before_attention(Pass pass) const {
    if (pass == Pass::kForward) return OpKind::kPreAttention;
    return is_divided() ? OpKind::kOutProjection : OpKind::kPostAttention;
  }
  OpKind behind_attention(Pass pass) const {
    if (pass == Pass::kBackward) return OpKind::kPreAttention;
    return is_divided() ? OpKind::kOutProjection : OpKind::kPostAttention;
  }
  /// In a divided layer, and at its embedding: each operation comes after another of the same pass.
  struct Link {
    Pass pass;
    Kind op, before;
  };
  static const std::vector<Link>& links() {
    constexpr OpKind kGather = OpKind::kGatherRows, kSum = OpKind::kSumRows,
                     kPre = OpKind::kPreAttention, kOut = OpKind::kOutProjection,
                     kPost = OpKind::kPostAttention, kEmbed = OpKind::kEmbed,
                     kNorm = OpKind::kAttentionNorm, kMlpNorm = OpKind::kMlpNorm;
    static const std::vector<Link> all = {
        {Pass::kForward, {kSum, kEmbed}, kEmbed},   {Pass::kForward, {kGather, kPre}, kNorm},
        {Pass::kForward, kPre, {kGather, kPre}},    {Pass::kForward, {kSum, kOut}, kOut},
        {Pass::kForward, kMlpNorm, {kSum, kOut}},   {Pass::kForward, {kGather, kPost}, kMlpNorm},
        {Pass::kForward, kPost, {kGather, kPost}},  {Pass::kForward, {kSum, kPost}, kPost},
        {Pass::kBackward, kPost, {kGather, kPost}}, {Pass::kBackward, {kSum, kPost}, kPost},
        {Pass::kBackward, kMlpNorm, {kSum, kPost}}, {Pass::kBackward, {kGather, kOut}, kMlpNorm},
        {Pass::kBackward, kOut, {kGather, kOut}},   {Pass::kBackward, {kSum, kPre}, kPre},
        {Pass::kBackward, kNorm, {kSum, kPre}},     {Pass::kBackward, kEmbed, {kGather, kEmbed}},
    };
    return all;
  }
  static bool serves(const Op& op) { return op.exchange >= 0; }
  /// In place of a kP2p's layer: whether it receives.
  static constexpr int kSent = 0, kReceived = 1;
  static int find(const std::unordered_map<uint64_t, int32_t>& ops, uint64_t key) {
    const auto found = ops.find(key);
    return found == ops.end() ? -1 : found->second;
  }
  /// Finds what this rank does as a home for a layer of a nano-batch. Returns -1 if it is missing.
  int32_t at_home(Kind kind, Pass pass, int layer, int nano) const {
    return find(at_home_, key(kind, pass, layer, nano));
  }
  /// Finds an operation of the layer step of `op` in its exchange. Returns -1 if it is missing.
  int32_t of_exchange(OpKind kind, Pass pass, const Op& op) const {
    return find(of_exchanges_, key(kind, pass, op.exchange, op.layer_step));
  }
  const AttentionOps* attention_ops_of(Pass pass, const Op& op) const {
    const auto found =
        attention_ops_.find(key(OpKind::kCoreAttention, pass, op.exchange, op.layer_step));
    return found == attention_ops_.end() ? nullptr : &found->second;
  }

  void enlist(int32_t i) {
    const Op& op = program_.ops[i];
    if (op.kind == OpKind::kCoreAttention) return enlist_attention(i);
    const bool has_home = op.nano_batch >= 0 || op.exchange < 0;
    const int place = op.kind != OpKind::kP2p ? op.layer : (op.is_receive ? kReceived : kSent);
    bool is_new = !has_home ||
                  at_home_.emplace(key(kind_of(op), op.pass, place, op.nano_batch), i).second ||
                  op.bucket >= 0;
    if (serves(op)) {
      const uint64_t of_exchange = key(op.kind, op.pass, op.exchange, op.layer_step);
      is_new = of_exchanges_.emplace(of_exchange, i).second && is_new;
    }
    if (!is_new) say(i, "stands twice");
  }
  void enlist_attention(int32_t i) {
    const Op& op = program_.ops[i];
    AttentionOps& attends = attention_ops_[key(op.kind, op.pass, op.exchange, op.layer_step)];
    const uint32_t bit = op.tasks == TaskSet::kAll ? ~0U : 1U << static_cast<int>(op.tasks);
    // check_parts() says whether parts have rows in common.
    if ((attends.sets & bit) != 0 && !(op.part >= 0 && attends.in_parts))
      say(i, "computes tasks that were computed before");
    attends.sets |= bit;
    if (op.part >= 0) attends.in_parts = true;
    if (attends.first < 0) attends.first = i;
    attends.last = i;
    if (attention_needs(program_, op).fills(op.pass)) attends.filled = i;
  }

  /// `i` comes after this operation of its nano-batch, if this rank plays phases; it waits until
  /// the other has ended, or what it receives has landed.
  void after(int32_t i, Kind kind, Pass pass, int layer) {
    const int nano = program_.ops[i].nano_batch;
    if (nano < 0 || stage_.layers.empty()) return;
    const int32_t other = needs(i, kind, pass, at_home(kind, pass, layer, nano));
    if (other >= 0 && !order_.is_over(other, i)) say(i, "does not wait for {}", numbered(other));
  }
  int lowest_layer() const { return static_cast<int>(stage_.layers.begin); }
  int highest_layer() const { return static_cast<int>(stage_.layers.end) - 1; }
  /// The first phase of a layer comes after what its nano-batch had before: the layer next to it,
  /// or what its stage begins with.
  void starts_layer(int32_t i) {
    const auto& [pass, layer] = std::pair(program_.ops[i].pass, program_.ops[i].layer);
    const bool forward = pass == Pass::kForward;
    if (layer != (forward ? lowest_layer() : highest_layer())) {
      after(i, last_of_layer(pass), pass, forward ? layer - 1 : layer + 1);
    } else if (forward ? stage_.is_first() : stage_.is_last()) {
      const Kind embedded = is_divided() ? Kind(OpKind::kSumRows) : Kind(OpKind::kEmbed);
      after(i, forward ? embedded : Kind(OpKind::kLoss), pass, -1);
    } else {
      after(i, OpKind::kP2p, pass, kReceived);
    }
  }
  /// The operation that a stage ends with, or that sends to another stage, comes after its last
  /// layer.
  void ends_stage(int32_t i) {
    if (program_.ops[i].is_receive) return;
    const Pass pass = program_.ops[i].pass;
    after(i, last_of_layer(pass), pass, pass == Pass::kForward ? highest_layer() : lowest_layer());
  }
  /// Operations of a divided layer come after those before them.
  void follows_links(int32_t i) {
    if (!is_divided()) return;
    const Op& op = program_.ops[i];
    for (const Link& link : links()) {
      if (link.pass == op.pass && is_same(op, link.op)) after(i, link.before, op.pass, op.layer);
    }
  }
  /// `i` comes after `other`, which the program must have. Returns `other`, or -1 if it is missing
  /// or comes too late.
  int32_t needs(int32_t i, Kind kind, Pass pass, int32_t other) {
    if (other < 0) {
      say(i, "needs its {} {}, which is nowhere", pass_name(pass), op_name(kind.kind));
      return -1;
    }
    if (other < i) return other;
    say(i, "comes before {}", numbered(other));
    return -1;
  }
  int32_t needs_at_home(int32_t i, OpKind kind, Pass pass) {
    const Op& op = program_.ops[i];
    return needs(i, kind, pass, at_home(kind, pass, op.layer, op.nano_batch));
  }
  int32_t needs_of_exchange(int32_t i, OpKind kind, Pass pass) {
    return needs(i, kind, pass, of_exchange(kind, pass, program_.ops[i]));
  }
  /// All that came home has landed, and all tasks are done.
  void needs_attention(int32_t i) {
    const int32_t combine = needs_at_home(i, OpKind::kCombine, program_.ops[i].pass);
    if (combine < 0) return;
    if (!order_.landed(combine, i)) say(i, "does not wait for {}", numbered(combine));
    const AttentionOps* attends = attention_ops_of(program_.ops[i].pass, program_.ops[combine]);
    if (attends != nullptr && attends->last > i) say(i, "comes before {}", numbered(attends->last));
  }
  void combines_after_attention(int32_t i) {
    const AttentionOps* attends = attention_ops_of(program_.ops[i].pass, program_.ops[i]);
    if (attends == nullptr) {
      say(i, "needs its core_attention, which is nowhere");
    } else if ((attends->first > i && !attends->in_parts) || attends->filled > i) {
      say(i, "comes before {}", numbered(std::max(attends->first, attends->filled)));
    }
  }
  /// Core attention of more than home tasks reads what was received for it.
  void reads_what_came(int32_t i, int32_t exchange) {
    if (exchange < 0 || program_.ops[exchange].in < 0) return;
    const Op &op = program_.ops[i], &communication = program_.ops[exchange];
    const AttentionNeeds needs = attention_needs(program_, op);
    const bool brings_queries =
        communication.kind == OpKind::kDispatch && communication.pass == Pass::kBackward;
    if (!(brings_queries ? needs.returned : needs.received)) return;
    if (std::ranges::find(op.reads, communication.in) == op.reads.end())
      say(i, "does not read what {} receives", numbered(exchange));
  }

  void check_of_step(int32_t i) {
    const Op& op = program_.ops[i];
    if (op.kind == OpKind::kOptimizer) {
      needs_at_home(i, OpKind::kGradNorm, Pass::kBackward);
    } else if (is_phase(op)) {
      say(i, "belongs to no nano-batch");
    }
  }

  void check_of_pass(int32_t i) {
    const Op& op = program_.ops[i];
    const bool backward = op.pass == Pass::kBackward;
    if (backward) {
      const int32_t norm = at_home(OpKind::kGradNorm, Pass::kBackward, -1, -1);
      if (norm >= 0 && norm < i) say(i, "comes after {}", numbered(norm));
      if (is_phase(op)) needs_at_home(i, op.kind, Pass::kForward);
    } else if (op.kind == OpKind::kRedispatch || op.kind == OpKind::kWeightGradient) {
      return say(i, "belongs to backward");
    }
    follows_links(i);
    if (is_same(op, first_of_layer(op.pass))) starts_layer(i);
    if (op.kind == behind_attention(op.pass)) {
      needs_at_home(i, before_attention(op.pass), op.pass);
      needs_attention(i);
    }
    switch (op.kind) {
      case OpKind::kDispatch:
        after(i, before_attention(op.pass), op.pass, op.layer);
        break;
      case OpKind::kCoreAttention:
        check_attention(i);
        break;
      case OpKind::kCombine:
        combines_after_attention(i);
        break;
      case OpKind::kRedispatch:
        after(i, OpKind::kPreAttention, Pass::kForward, op.layer);
        break;
      case OpKind::kWeightGradient:
        after(i, OpKind::kPreAttention, Pass::kBackward, op.layer);
        after(i, OpKind::kPostAttention, Pass::kBackward, op.layer);
        break;
      case OpKind::kGatherRows:
        if (backward && op.layer < 0) ends_stage(i);
        break;
      case OpKind::kEmbed:
        if (backward && !is_divided()) ends_stage(i);
        break;
      case OpKind::kLoss:
        if (!backward) ends_stage(i);
        break;
      case OpKind::kP2p:
        ends_stage(i);
        break;
      default:
        break;
    }
  }

  /// In backward, Q, K, V are those of forward, of the same exchange, or were sent again.
  void check_attention(int32_t i) {
    const Op& op = program_.ops[i];
    reads_what_came(i, needs_of_exchange(i, OpKind::kDispatch, op.pass));
    if (op.pass == Pass::kForward) return;
    const bool again = of_exchange(OpKind::kRedispatch, Pass::kBackward, op) >= 0;
    reads_what_came(i, again ? needs_of_exchange(i, OpKind::kRedispatch, Pass::kBackward)
                             : needs_of_exchange(i, OpKind::kDispatch, Pass::kForward));
  }

  /// A nano-batch that has some backward has all of it: as a home, under whichever exchange. An
  /// exchange that serves some layer step in both passes does so in all that it serves forward.
  void check_completeness() {
    std::unordered_set<int> nano_batches, exchanges;
    for (const Op& op : program_.ops) {
      if (op.pass != Pass::kBackward) continue;
      if (op.nano_batch >= 0) nano_batches.insert(op.nano_batch);
      if (op.exchange >= 0) exchanges.insert(op.exchange);
    }
    for (int32_t i = 0; i < static_cast<int32_t>(program_.ops.size()); ++i) {
      const Op& op = program_.ops[i];
      const bool attends = op.kind == OpKind::kCoreAttention;
      if (op.pass == Pass::kBackward) {
        check_served_backward(i);
      } else if ((is_phase(op) || (communicates(op.kind) && serves(op))) &&
                 nano_batches.contains(op.nano_batch) &&
                 at_home(op.kind, Pass::kBackward, op.layer, op.nano_batch) < 0) {
        say(i, "has no backward");
      } else if (serves(op) && exchanges.contains(op.exchange) &&
                 (attends ? attention_ops_of(Pass::kBackward, op) == nullptr
                          : of_exchange(op.kind, Pass::kBackward, op) < 0)) {
        say(i, "has no backward");
      }
    }
  }

  /// Operations that serve backward come after those with which the exchange served forward, where
  /// it did: an exchange of backward's own has only Q, K, V that are sent again.
  void check_served_backward(int32_t i) {
    const Op& op = program_.ops[i];
    if (op.kind == OpKind::kRedispatch || !serves(op)) return;
    if (of_exchange(OpKind::kDispatch, Pass::kForward, op) < 0) {
      if (op.kind != OpKind::kCoreAttention)
        needs_of_exchange(i, OpKind::kRedispatch, Pass::kBackward);
      return;
    }
    if (op.kind != OpKind::kCoreAttention) {
      needs_of_exchange(i, op.kind, Pass::kForward);
      return;
    }
    const AttentionOps* forward = attention_ops_of(Pass::kForward, op);
    if (forward == nullptr || forward->last > i) say(i, "comes before its forward");
  }

  const Stage& stage_ = program_.stage;
  std::unordered_map<uint64_t, int32_t> at_home_;  // by layer and nano-batch; no core attention
  std::unordered_map<uint64_t, int32_t>
      of_exchanges_;  // by exchange and layer step; no core attention
  std::unordered_map<uint64_t, AttentionOps> attention_ops_;  // likewise
};

}  // namespace

void check_order(const Program& program, const ProgramOrder& order,
                 std::vector<std::string>& wrong) {
  Sequence(program, order, wrong).check();
}

}  // namespace distca
