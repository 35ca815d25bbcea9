// Which operation needs which.

#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include "distca/program/validate_order.h"

namespace distca {
namespace {

class Sequence {
 public:
  Sequence(const Program& program, const ProgramOrder& order, std::vector<std::string>& wrong)
      : program_(program), order_(order), wrong_(wrong) {
    ops_.reserve(program.ops.size());
    attends_.reserve(program.ops.size() / 4);
  }

  void check() {
    const auto num_ops = static_cast<int32_t>(program_.ops.size());
    for (int32_t i = 0; i < num_ops; ++i) enlist(i);
    for (int32_t i = 0; i < num_ops; ++i) {
      check_stream(i);
      const Op& op = program_.ops[i];
      if (op.nano_batch < 0) {
        check_of_step(i);
      } else if (op.pass == Pass::kForward) {
        check_forward(i);
      } else {
        check_backward(i);
      }
    }
    check_completeness();
  }

 private:
  /// The attends of a layer, nano-batch and pass.
  struct Attends {
    int32_t first = -1, last = -1;
    int32_t away = -1;  // the one that reads what is received and writes what is returned
    uint32_t sets = 0;  // a bit each
  };
  static uint64_t key(OpKind kind, Pass pass, int layer, int nano) {
    return ((uint64_t(kind) * 2 + uint64_t(pass)) << 48) ^ (uint64_t(uint32_t(layer + 1)) << 24) ^
           uint64_t(uint32_t(nano + 1));
  }

  void say(int32_t op, const std::string& what) {
    wrong_.push_back(fmt::format("{} {}", numbered(program_, op), what));
  }

  void enlist(int32_t i) {
    const Op& op = program_.ops[i];
    if (op.kind != OpKind::kAttend) {
      if (!ops_.emplace(key(op.kind, op.pass, op.layer, op.nano_batch), i).second) {
        say(i, "stands twice");
      }
      return;
    }
    Attends& attends = attends_[key(op.kind, op.pass, op.layer, op.nano_batch)];
    const bool whole = op.tasks == TaskSet::kAll;
    const uint32_t bit = whole ? ~0U : 1U << static_cast<int>(op.tasks);
    if ((attends.sets & bit) != 0) say(i, "attends tasks that were attended before");
    attends.sets |= bit;
    if (attends.first < 0) attends.first = i;
    attends.last = i;
    if (whole || op.tasks == TaskSet::kAway) attends.away = i;
  }

  int32_t find(OpKind kind, Pass pass, int layer, int nano) const {
    const auto found = ops_.find(key(kind, pass, layer, nano));
    return found == ops_.end() ? -1 : found->second;
  }
  const Attends* attends_of(const Op& op) const {
    const auto found = attends_.find(key(OpKind::kAttend, op.pass, op.layer, op.nano_batch));
    return found == attends_.end() ? nullptr : &found->second;
  }

  /// `i` comes after this operation, if the program has it; an exchange waits until it has ended.
  void after(int32_t i, OpKind kind, Pass pass, int layer) {
    const int32_t other = find(kind, pass, layer, program_.ops[i].nano_batch);
    if (other > i) {
      say(i, fmt::format("comes before {}", numbered(program_, other)));
    } else if (other >= 0 && program_.ops[other].stream == Stream::kCompute &&
               !order_.ended(other, i)) {
      say(i, fmt::format("does not wait for {}", numbered(program_, other)));
    }
  }
  /// ..., which it must have. -1: it has not.
  int32_t needs(int32_t i, OpKind kind, Pass pass) {
    const Op& op = program_.ops[i];
    const int32_t other = find(kind, pass, op.layer, op.nano_batch);
    if (other < 0) {
      say(i, fmt::format("needs its {} {}, which is nowhere", pass_name(pass), op_name(kind)));
      return -1;
    }
    if (other < i) return other;
    say(i, fmt::format("comes before {}", numbered(program_, other)));
    return -1;
  }
  /// What came home has landed, and all tasks are done.
  void needs_attention(int32_t i) {
    const Op& op = program_.ops[i];
    const int32_t leave = needs(i, OpKind::kLeave, op.pass);
    if (leave >= 0 && !order_.landed(leave, i)) {
      say(i, fmt::format("does not wait for {}", numbered(program_, leave)));
    }
    const Attends* attends = attends_of(op);
    if (attends != nullptr && attends->last > i) {
      say(i, fmt::format("comes before {}", numbered(program_, attends->last)));
    }
  }
  void leaves_after_attend(int32_t i) {
    const Attends* attends = attends_of(program_.ops[i]);
    if (attends == nullptr) {
      say(i, "needs its attend, which is nowhere");
    } else if (attends->first > i || attends->away > i) {
      say(i, fmt::format("comes before {}",
                         numbered(program_, std::max(attends->first, attends->away))));
    }
  }
  /// An attend of more than home tasks reads what was received for it.
  void reads_what_came(int32_t i, int32_t exchange) {
    const Op& op = program_.ops[i];
    if (exchange < 0 || program_.ops[exchange].in < 0) return;
    if (op.tasks == TaskSet::kHomeFirst || op.tasks == TaskSet::kHomeRest) return;
    for (int32_t buffer : op.reads) {
      if (buffer == program_.ops[exchange].in) return;
    }
    say(i, fmt::format("does not read what {} receives", numbered(program_, exchange)));
  }

  void check_stream(int32_t i) {
    const Op& op = program_.ops[i];
    const bool exchanges = op.kind == OpKind::kEnter || op.kind == OpKind::kResend ||
                           op.kind == OpKind::kLeave || op.kind == OpKind::kHandOver;
    if (exchanges != (op.stream == Stream::kComm)) say(i, "is on the wrong stream");
    if (!exchanges && (!op.sends.empty() || !op.receives.empty())) {
      say(i, "sends or receives, but is no exchange");
    }
  }

  void check_of_step(int32_t i) {
    const Op& op = program_.ops[i];
    if (op.kind == OpKind::kOptimizer) {
      needs(i, OpKind::kGradientSum, Pass::kBackward);
    } else if (op.kind != OpKind::kGradientSum) {
      say(i, "belongs to no nano-batch");
    }
  }

  void check_forward(int32_t i) {
    const Op& op = program_.ops[i];
    switch (op.kind) {
      case OpKind::kPre:
        after(i, OpKind::kEmbed, Pass::kForward, -1);
        after(i, OpKind::kPost, Pass::kForward, op.layer - 1);
        lands_before(i, op.layer);
        break;
      case OpKind::kEnter:
        after(i, OpKind::kPre, Pass::kForward, op.layer);
        break;
      case OpKind::kAttend:
        reads_what_came(i, needs(i, OpKind::kEnter, Pass::kForward));
        break;
      case OpKind::kLeave:
        leaves_after_attend(i);
        break;
      case OpKind::kPost:
        needs(i, OpKind::kPre, Pass::kForward);
        needs_attention(i);
        break;
      case OpKind::kHandOver:
        after(i, OpKind::kPost, Pass::kForward, op.layer - 1);
        break;
      case OpKind::kResend:
        say(i, "belongs to backward");
        break;
      default:
        break;
    }
  }

  void check_backward(int32_t i) {
    const Op& op = program_.ops[i];
    const int32_t sum = find(OpKind::kGradientSum, Pass::kBackward, -1, -1);
    if (sum >= 0 && sum < i) say(i, fmt::format("comes after {}", numbered(program_, sum)));
    const int32_t resend = find(OpKind::kResend, Pass::kBackward, op.layer, op.nano_batch);
    const bool serves = op.kind == OpKind::kEnter || op.kind == OpKind::kAttend ||
                        op.kind == OpKind::kLeave || op.kind == OpKind::kResend;
    // Keys that are sent again may be served by others than in forward.
    if (!serves || (resend < 0 && op.kind != OpKind::kAttend)) {
      needs(i, op.kind, Pass::kForward);
    } else if (resend < 0) {
      const auto forward = attends_.find(key(op.kind, Pass::kForward, op.layer, op.nano_batch));
      if (forward == attends_.end() || forward->second.last > i) say(i, "comes before its forward");
    }
    switch (op.kind) {
      case OpKind::kPost:
        after(i, OpKind::kLoss, Pass::kBackward, -1);
        after(i, OpKind::kPre, Pass::kBackward, op.layer + 1);
        lands_before(i, op.layer + 1);
        break;
      case OpKind::kEnter:
        after(i, OpKind::kPost, Pass::kBackward, op.layer);
        break;
      case OpKind::kAttend: {
        reads_what_came(i, needs(i, OpKind::kEnter, Pass::kBackward));
        after(i, OpKind::kResend, Pass::kBackward, op.layer);
        reads_what_came(i, resend >= 0
                               ? resend
                               : find(OpKind::kEnter, Pass::kForward, op.layer, op.nano_batch));
        break;
      }
      case OpKind::kLeave:
        leaves_after_attend(i);
        break;
      case OpKind::kResend:
        after(i, OpKind::kPre, Pass::kForward, op.layer);
        break;
      case OpKind::kPre:
        needs(i, OpKind::kPost, Pass::kBackward);
        needs_attention(i);
        break;
      case OpKind::kEmbed:
        after(i, OpKind::kPre, Pass::kBackward, 0);
        break;
      case OpKind::kHandOver:
        after(i, OpKind::kPre, Pass::kBackward, op.layer);
        break;
      default:
        break;
    }
  }

  /// Activations, or in backward their gradients, that another stage hands over for `i`.
  void lands_before(int32_t i, int layer) {
    const Op& op = program_.ops[i];
    const int32_t other = find(OpKind::kHandOver, op.pass, layer, op.nano_batch);
    if (other < 0 || program_.ops[other].receives.empty()) return;
    if (other > i || !order_.landed(other, i)) {
      say(i, fmt::format("does not wait for {}", numbered(program_, other)));
    }
  }

  /// A nano-batch that has some backward has all of it.
  void check_completeness() {
    std::unordered_set<int> has_backward;
    bool resends = false;
    for (const Op& op : program_.ops) {
      if (op.pass == Pass::kBackward) has_backward.insert(op.nano_batch);
      resends = resends || op.kind == OpKind::kResend;
    }
    for (int32_t i = 0; i < static_cast<int32_t>(program_.ops.size()); ++i) {
      const Op& op = program_.ops[i];
      if (op.pass == Pass::kBackward || !has_backward.contains(op.nano_batch)) continue;
      const uint64_t backward = key(op.kind, Pass::kBackward, op.layer, op.nano_batch);
      const bool attends = op.kind == OpKind::kAttend;
      const bool serves = attends || op.kind == OpKind::kEnter || op.kind == OpKind::kLeave;
      if (serves && resends) continue;  // others may serve it
      if (attends ? !attends_.contains(backward) : !ops_.contains(backward)) {
        say(i, "has no backward");
      }
    }
  }

  const Program& program_;
  const ProgramOrder& order_;
  std::vector<std::string>& wrong_;
  std::unordered_map<uint64_t, int32_t> ops_;  // all but attends
  std::unordered_map<uint64_t, Attends> attends_;
};

}  // namespace

void check_order(const Program& program, const ProgramOrder& order,
                 std::vector<std::string>& wrong) {
  Sequence(program, order, wrong).check();
}

}  // namespace distca
