#pragma once
// A training step of one rank as operations on two streams, compute and communication, with
// dependencies and buffers: built from a step plan, a model's shape and a schedule
// (program/schedule.h), checked by a validator of its own (program/validate.h), played by
// runtime/executor. Plain value, any thread.
// Paper 4.1 (figures 7 and 8), 4.5.
//
// How a program is played. The compute stream plays its operations in the order of the list. An
// exchange (stream kComm) is started where it stands in the list, after its `deps` are met: what
// travels is packed into its buffer `out`, before whatever follows in the list begins, and all its
// messages are posted. It is finished just
// before the first operation that has it in `deps`: all that was to be received has landed in `in`,
// and what came home (kLeave) is put in its place. Whatever has it in `sent` waits until its sends
// have left too, so that `out` may be written again. Exchanges under way have no order among each
// other but the one in which they were started.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace distca {

enum class OpKind : uint8_t {
  kEmbed,     // token embedding
  kPre,       // norm, QKV projection, RoPE
  kEnter,     // Q, K, V to the servers; backward: dO, LSE, delta
  kResend,    // Q, K, V to the servers again, for backward: where keys are not kept
  kAttend,    // this rank's tasks
  kLeave,     // O, LSE back home; backward: dQ, dK, dV
  kPost,      // output projection, residual, norm, MLP
  kHandOver,  // pipeline: activations to the stage that has this layer; backward: their gradients
  kLoss,      // final norm, head, loss
  kGradientSum,  // data-parallel sum, clip
  kOptimizer,    // parameter update
};
inline constexpr int kNumOpKinds = 11;

enum class Pass : uint8_t { kForward, kBackward };
enum class Stream : uint8_t { kCompute, kComm };

/// Which of a server's tasks an attend computes (schedule.h, task_set). Tasks at home read nothing
/// that was received and write nothing that is returned: they run while exchanges are under way.
enum class TaskSet : uint8_t {
  kAll,
  kHomeFirst,  // about half of the work at home
  kAway,       // all that needs what was received, or is returned
  kHomeRest,
};

/// One message of an exchange: bytes [offset, offset + bytes) of its buffer.
struct OpMessage {
  int peer = 0;
  int64_t offset = 0;  // a multiple of kMessageAlignment
  int64_t bytes = 0;   // > 0
  bool operator==(const OpMessage&) const = default;
};
inline constexpr int64_t kMessageAlignment = 64;

struct Op {
  OpKind kind = OpKind::kEmbed;
  Pass pass = Pass::kForward;
  Stream stream = Stream::kCompute;
  TaskSet tasks = TaskSet::kAll;  // of kAttend
  int layer = -1;                 // -1: belongs to no layer
  int micro_batch = -1;           // -1: belongs to the whole step
  int nano_batch = -1;            // of the step; -1: belongs to the whole step
  std::vector<int32_t> deps;      // operations before this one in the list that must be finished
  std::vector<int32_t> sent;      // exchanges before this one whose sends must have left

  // Exchanges: one tag for all messages, the same on both sides, no two exchanges of a step alike.
  uint32_t tag = 0;
  std::vector<OpMessage> sends, receives;  // ascending peer, each peer at most once
  int32_t out = -1;                        // buffer that is sent from; -1: nothing to send
  int32_t in = -1;                         // buffer that is received into; -1: nothing to receive
  // Buffers that the operation itself reads and writes: an attend what was received and what will
  // be returned; an exchange, when it is started, what it packs from and into.
  std::vector<int32_t> reads, writes;

  int64_t bytes = 0;  // that this rank sends
  double flops = 0;   // of matrix products; attention: of the pairs its masks allow
};

/// What a buffer holds. Each belongs to one layer and nano-batch at a time.
enum class BufferRole : uint8_t {
  kQkvOut,         // Q, K, V to be sent
  kQkvIn,          // Q, K, V received; read by forward's and, where kept, by backward's attend
  kOOut,           // O, LSE to be returned
  kOIn,            // O, LSE come home
  kDOOut,          // dO, LSE, delta to be sent
  kDOIn,           // dO, LSE, delta received
  kAccumulators,   // dQ, dK, dV of others in the accumulator's type, where they travel in another
  kGradientOut,    // dQ, dK, dV to be returned
  kGradientIn,     // dQ, dK, dV come home
  kActivationOut,  // activations, or their gradients, for another stage
  kActivationIn,   // ... from another stage
};

struct Buffer {
  BufferRole role = BufferRole::kQkvOut;
  int64_t bytes = 0;
  bool operator==(const Buffer&) const = default;
};

/// Operations in an order in which they may be played: deps point backwards.
struct Program {
  std::vector<Op> ops;
  std::vector<Buffer> buffers;
};

const char* op_name(OpKind kind);
const char* pass_name(Pass pass);
const char* task_set_name(TaskSet set);
const char* buffer_name(BufferRole role);
/// "forward layer 3 enter of nano-batch 1": what waits and traces call an operation.
std::string describe(const Op& op);

/// A table for people: a line an operation, with stream, dependencies, buffers, bytes, FLOPs.
std::string print_program(const Program& program);

}  // namespace distca
