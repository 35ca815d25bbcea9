#include "distca/program/program.h"

#include <fmt/format.h>

namespace distca {

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

}  // namespace distca
