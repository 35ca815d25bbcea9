#include "distca/program/program.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace distca {
namespace {

/// Appends operations, each depending on the one before: a chain.
class Chain {
 public:
  explicit Chain(Program* program) : program_(program) {}

  void add(OpKind kind, Pass pass, int layer, int nano_batch) {
    const bool moves_bytes =
        kind == OpKind::kEnter || kind == OpKind::kLeave || kind == OpKind::kGradientSum;
    Op op{.kind = kind,
          .pass = pass,
          .stream = moves_bytes ? Stream::kComm : Stream::kCompute,
          .layer = layer,
          .nano_batch = nano_batch,
          .deps = {}};
    if (!program_->ops.empty()) op.deps.push_back(static_cast<int32_t>(program_->ops.size()) - 1);
    program_->ops.push_back(std::move(op));
  }

 private:
  Program* program_;
};

constexpr OpKind kLayerOps[] = {OpKind::kPre, OpKind::kEnter, OpKind::kAttend, OpKind::kLeave,
                                OpKind::kPost};

}  // namespace

Program build_blocking_program(const ProgramShape& shape) {
  Program program;
  Chain chain(&program);
  for (int nano = 0; nano < shape.num_nano_batches; ++nano) {
    chain.add(OpKind::kEmbed, Pass::kForward, -1, nano);
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      for (OpKind kind : kLayerOps) chain.add(kind, Pass::kForward, layer, nano);
    }
    chain.add(OpKind::kLoss, Pass::kForward, -1, nano);
    if (shape.kind == ProgramShape::Kind::kEvaluate) continue;
    chain.add(OpKind::kLoss, Pass::kBackward, -1, nano);
    for (int layer = shape.num_layers - 1; layer >= 0; --layer) {
      for (auto kind = std::rbegin(kLayerOps); kind != std::rend(kLayerOps); ++kind) {
        // Backward mirrors forward: what came home last leaves first.
        const OpKind mirrored = *kind == OpKind::kLeave   ? OpKind::kEnter
                                : *kind == OpKind::kEnter ? OpKind::kLeave
                                                          : *kind;
        chain.add(mirrored, Pass::kBackward, layer, nano);
      }
    }
    chain.add(OpKind::kEmbed, Pass::kBackward, -1, nano);
  }
  if (shape.kind == ProgramShape::Kind::kTrain) {
    chain.add(OpKind::kGradientSum, Pass::kBackward, -1, -1);
    chain.add(OpKind::kOptimizer, Pass::kBackward, -1, -1);
  }
  return program;
}

std::vector<std::string> validate(const Program& program) {
  using Key = std::tuple<OpKind, Pass, int, int>;
  std::vector<std::string> wrong;
  std::map<Key, size_t> seen;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    for (int32_t dep : op.deps) {
      if (dep < 0 || dep >= static_cast<int32_t>(i)) {
        wrong.push_back(
            fmt::format("operation {} ({}) depends on {}, which does not come before it", i,
                        describe(op), dep));
      }
    }
    auto needs = [&](OpKind kind, Pass pass) {
      if (!seen.contains({kind, pass, op.layer, op.nano_batch})) {
        wrong.push_back(fmt::format("operation {} ({}) comes before its {} {}", i, describe(op),
                                    pass == Pass::kForward ? "forward" : "backward",
                                    op_name(kind)));
      }
    };
    if (op.kind == OpKind::kAttend) needs(OpKind::kEnter, op.pass);
    if (op.kind == OpKind::kLeave) needs(OpKind::kAttend, op.pass);
    if (op.pass == Pass::kBackward && op.nano_batch >= 0) needs(op.kind, Pass::kForward);
    if (!seen.emplace(Key{op.kind, op.pass, op.layer, op.nano_batch}, i).second) {
      wrong.push_back(fmt::format("operation {} ({}) stands twice", i, describe(op)));
    }
  }
  return wrong;
}

const char* op_name(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
      return "embed";
    case OpKind::kPre:
      return "pre";
    case OpKind::kEnter:
      return "enter";
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

std::string describe(const Op& op) {
  if (op.nano_batch < 0) return op_name(op.kind);
  const char* pass = op.pass == Pass::kForward ? "forward" : "backward";
  if (op.layer < 0)
    return fmt::format("{} {} of nano-batch {}", pass, op_name(op.kind), op.nano_batch);
  return fmt::format("{} layer {} {} of nano-batch {}", pass, op.layer, op_name(op.kind),
                     op.nano_batch);
}

}  // namespace distca
