#pragma once
// A training step of one rank as operations on two streams, compute and communication, with
// dependencies and buffers: built from a step plan, a model's shape and a schedule
// (program/overlap.h), checked by a validator of its own (program/validate.h), played by
// runtime/executor. Plain value, any thread.
// Paper 4.1 (figures 7 and 8), 4.5.
//
// Words. An exchange (plan/attention_exchange.h) is what a rank sends, receives and computes under
// one plan. A communication is one operation of it on the stream kComm: kDispatch, kRedispatch or
// kCombine of one layer.
//
// How a program is played. The compute stream plays its operations in the order of the list. A
// communication is started where it stands in the list, after its `wait_for` are met: what travels
// is packed into its buffer `out`, before whatever follows in the list begins, and all its messages
// are issued. It is finished just before the first operation that has it in `wait_for`: all that
// was to be received has landed in `in`, and what came home (kCombine) is put in its place.
// Whatever has it in `wait_sends` waits until its sends have left too, so that `out` may be written
// again. Communications under way have no order among each other but the one in which they were
// started.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "distca/plan/attention_exchange.h"

namespace distca {

enum class OpKind : uint8_t {
  kEmbed,          // token embedding
  kPreAttention,   // norm, QKV projection, RoPE
  kDispatch,       // Q, K, V to the servers; backward: dO, LSE, delta
  kRedispatch,     // Q, K, V to the servers again, for backward: where keys are not kept
  kCoreAttention,  // this rank's tasks
  kCombine,        // O, LSE back home; backward: dQ, dK, dV
  kPostAttention,  // output projection, residual, norm, MLP
  kLoss,           // final norm, head, loss
  kGradReduce,     // data-parallel sum, clip
  kOptimizer,      // parameter update
};
inline constexpr int kNumOpKinds = static_cast<int>(OpKind::kOptimizer) + 1;

enum class Pass : uint8_t { kForward, kBackward };
enum class Stream : uint8_t { kCompute, kComm };

struct Op {
  OpKind kind = OpKind::kEmbed;
  Pass pass = Pass::kForward;
  Stream stream = Stream::kCompute;
  TaskSet tasks = TaskSet::kAll;  // of kCoreAttention
  // Whose work it is at home. -1: belongs to no layer; to the whole step.
  int layer = -1;
  int micro_batch = -1;
  int nano_batch = -1;  // of the step
  // Of core attention and communications, alike on all ranks: which exchange of the program, and
  // which of the layers that go through it, from 0. -1: none.
  int32_t exchange = -1;
  int layer_step = -1;
  std::vector<int32_t> wait_for;    // operations before this one in the list that must be finished
  std::vector<int32_t> wait_sends;  // communications before this one whose sends must have left
  // Of a communication: one tag for all its messages, the same on both sides, of no other in a
  // step.
  uint32_t tag = 0;
  int32_t out = -1;  // buffer that is sent from; -1: nothing to send
  int32_t in = -1;   // buffer that is received into; -1: nothing to receive
  // Buffers that the operation itself reads and writes: core attention what was received and what
  // will be returned; a communication, when it is started, what it packs from and into.
  std::vector<int32_t> reads, writes;
  double flops = 0;  // of matrix products; attention: of the pairs its masks allow
};
/// Whether operations of this kind are communications.
bool communicates(OpKind kind);
/// What its messages hold; of an operation that does not communicate a CHECK.
Content content_of(const Op& op);

/// What a buffer holds. Each belongs to one layer of one exchange at a time.
enum class BufferRole : uint8_t {
  kQkvOut,  // Q, K, V to be sent
  kQkvIn,   // Q, K, V received; read by forward's and, where kept, by backward's core attention
  kOOut,    // O, LSE to be returned
  kOIn,     // O, LSE come home
  kDOOut,   // dO, LSE, delta to be sent
  kDOIn,    // dO, LSE, delta received
  kAccumulators,  // dQ, dK, dV of others in the accumulator's type, where they travel in another
  kGradientOut,   // dQ, dK, dV to be returned
  kGradientIn,    // dQ, dK, dV come home
};

inline constexpr int kNumBufferRoles = static_cast<int>(BufferRole::kGradientIn) + 1;
struct Buffer {
  BufferRole role = BufferRole::kQkvOut;
  int64_t bytes = 0;
  bool operator==(const Buffer&) const = default;
};

/// Operations in an order in which they may be played: what they wait for stands before them.
struct Program {
  std::vector<Op> ops;
  std::vector<Buffer> buffers;
  // This rank's part of each of the step's exchanges, in the same order on all ranks.
  std::vector<std::shared_ptr<const AttentionExchange>> exchanges;

  /// The messages of a communication, none of another operation: those of an exchange share them.
  const MessageList& sends(const Op& op) const;
  const MessageList& receives(const Op& op) const;
};

const char* op_name(OpKind kind);
const char* pass_name(Pass pass);
const char* task_set_name(TaskSet set);
const char* buffer_name(BufferRole role);
/// "forward layer 3 dispatch of nano-batch 1", or, where this rank only serves, "forward dispatch
/// of exchange 2, layer step 1": what waits and traces call an operation.
std::string describe(const Op& op);

/// A table for people: a line an operation, with stream, dependencies, buffers, bytes, FLOPs.
std::string print_program(const Program& program);

}  // namespace distca
