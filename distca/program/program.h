#pragma once
// A training step of one rank as a list of operations with dependencies: built from the model's
// shape and a schedule, played by runtime/executor in real time (and by a simulator in virtual
// time). Plain value, any thread. Paper 4.1 (figures 7 and 8), 4.5.

#include <cstdint>
#include <string>
#include <vector>

namespace distca {

enum class OpKind : uint8_t {
  kEmbed,        // token embedding
  kPre,          // norm, QKV projection, RoPE
  kEnter,        // Q, K, V to the servers; backward: dO, LSE, delta
  kAttend,       // this rank's tasks
  kLeave,        // O, LSE back home; backward: dQ, dK, dV
  kPost,         // output projection, residual, norm, MLP
  kLoss,         // final norm, head, loss
  kGradientSum,  // data-parallel sum, clip
  kOptimizer,    // parameter update
};
inline constexpr int kNumOpKinds = 9;

enum class Pass : uint8_t { kForward, kBackward };
enum class Stream : uint8_t { kCompute, kComm };

struct Op {
  OpKind kind = OpKind::kEmbed;
  Pass pass = Pass::kForward;
  Stream stream = Stream::kCompute;
  int layer = -1;             // -1: belongs to no layer
  int nano_batch = -1;        // -1: belongs to the whole step
  std::vector<int32_t> deps;  // indices of operations that must have finished
};

/// Operations in an order in which one stream after another may play them: deps point backwards.
struct Program {
  std::vector<Op> ops;
};

struct ProgramShape {
  int num_layers = 0;
  int num_nano_batches = 0;
  enum class Kind { kTrain, kEvaluate } kind = Kind::kTrain;  // evaluate: forward and loss only
};

/// Schedule `blocking`: one nano-batch after another, forward then backward, every exchange waited
/// for at once.
Program build_blocking_program(const ProgramShape& shape);

/// What is wrong with a program, one line each; empty when it can be played: dependencies point
/// backwards and every attend follows its enter, every leave its attend, every backward operation
/// its forward.
std::vector<std::string> validate(const Program& program);

const char* op_name(OpKind kind);
/// "forward layer 3 enter of nano-batch 1": what waits and traces call an operation.
std::string describe(const Op& op);

}  // namespace distca
