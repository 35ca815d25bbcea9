#pragma once
// A program is one rank's training step: a list of operations on two streams, compute and
// communication, with their dependencies and buffers. It is built from the step's plans, the
// model's shape and an overlap mode (program/overlap.h), checked by a validator of its own
// (program/validate.h), and played by runtime/executor (paper 4.1, figures 7 and 8, and 4.5). A
// program is a plain value, which any thread may read.
//
//   const Program program = build_program(request);  // program/overlap.h
//   fmt::print("{}", print_program(program));
//
// Words. An exchange (plan/attention_exchange.h) is what a rank sends, receives and computes under
// one plan. A communication is one operation on the stream kComm: the kDispatch, kRedispatch or
// kCombine of one layer of an exchange, the kHandOver of a nano-batch from a stage of a pipeline to
// the next (program/visit.h), or the kGradReduce, kGradGather or kWeightGather of a bucket of
// gradients (program/gradient_exchange.h).
//
// How a program is played. Compute operations run in the order of the list. A communication starts
// where it stands in the list, once all operations in its `wait_for` are over and all sends in its
// `wait_sends` have left. Then what travels is packed into its buffer `out`, all its messages are
// issued, and only then the next operation of the list begins. The communication is finished just
// before the first operation that names it in `wait_for`: all that it receives has landed in `in`,
// and what came home (kCombine) or was handed over (kHandOver) is put in its place. An operation
// that names it in `wait_sends` also waits until its sends have left, so that `out` may be written
// again. Communications under way have no order among each other, except that in which they were
// started.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/integers.h"
#include "distca/cost/pass.h"
#include "distca/plan/attention_exchange.h"

namespace distca {

enum class OpKind : uint8_t {
  kEmbed,          // token embedding
  kPreAttention,   // norm, QKV projection, RoPE
  kDispatch,       // Q, K, V go to the servers; backward: dO, LSE, delta
  kRedispatch,     // Q, K, V go to the servers again, for backward, where servers do not keep them
  kCoreAttention,  // this rank computes its tasks
  kCombine,        // O, LSE come home; backward: dQ, dK, dV
  kPostAttention,  // output projection, residual, norm, MLP
  kLoss,           // final norm, head, loss; forward does the work of backward, too
  kHandOver,      // a nano-batch's activations go to the next stage; backward: their gradients back
  kGradReduce,    // of a bucket: gradients go to the ranks that add them up
  kGradAdd,       // of a bucket: this rank adds up its slice, in rank order
  kGradGather,    // of a bucket: sums go to all other ranks
  kGradNorm,      // the norm of all gradients
  kOptimizer,     // of a bucket: clipping and update of what this rank updates
  kWeightGather,  // of a bucket: updated weights go to all other ranks
};
inline constexpr int kNumOpKinds = static_cast<int>(OpKind::kWeightGather) + 1;

enum class Stream : uint8_t { kCompute, kComm };

struct Op {
  OpKind kind = OpKind::kEmbed;
  Pass pass = Pass::kForward;
  Stream stream = Stream::kCompute;
  TaskSet tasks = TaskSet::kAll;  // which tasks kCoreAttention computes
  // Whose work the operation does at home. Layer -1: it belongs to no layer. Micro-batch or
  // nano-batch -1: it belongs to the whole step.
  int layer = -1;
  int micro_batch = -1;  // nano-batches played together (in ping-pong two); index in the step
  int nano_batch = -1;   // index in the step
  // Of a pipeline's visits (program/visit.h): index in the step, the same on both sides of a
  // message. -1: it belongs to the whole step, or there is no pipeline.
  int tick = -1;
  // Of core attention and communications: the index of the exchange in the program, and which of
  // the layers that go through this exchange, from 0. Both are the same on all ranks. -1: the
  // operation belongs to no exchange.
  int32_t exchange = -1;
  int layer_step = -1;
  int32_t bucket = -1;              // of the gradients: the index of the bucket
  bool is_receive = false;          // of a hand-over: what another stage sends comes; else it sends
  std::vector<int32_t> wait_for;    // earlier operations that must be over before this one begins
  std::vector<int32_t> wait_sends;  // earlier communications whose sends must have left
  // Of a communication: the tag of all its messages, the same on both sides. No other operation of
  // the step has it.
  uint32_t tag = 0;
  int32_t out = -1;  // buffer from which it sends; -1: it sends nothing
  int32_t in = -1;   // buffer into which it receives; -1: it receives nothing
  // Buffers that the operation itself reads and writes. Core attention reads what was received and
  // writes what will be returned. A communication, when it starts, reads what it packs and writes
  // what it packs into.
  std::vector<int32_t> reads, writes;
  double flops = 0;  // of matrix products; of core attention: for the pairs that its masks allow
};
/// Whether operations of this kind are communications.
bool communicates(OpKind kind);
/// What the messages of an exchange's communication hold. For another operation a CHECK.
Content content_of(const Op& op);

/// What a buffer holds. At any time, a buffer belongs to one layer of one exchange.
enum class BufferRole : uint8_t {
  kQkvOut,  // Q, K, V that will be sent
  /// Q, K, V that were received. Core attention reads them in forward, and in backward too where
  /// they are kept.
  kQkvIn,
  kOOut,   // O, LSE that will be returned
  kOIn,    // O, LSE that have come home
  kDOOut,  // dO, LSE, delta that will be sent
  kDOIn,   // dO, LSE, delta that were received
  /// Sums of dQ, dK, dV for other ranks, in the accumulator's type, where they travel in another
  /// type.
  kAccumulators,
  kGradientOut,  // dQ, dK, dV that will be returned
  kGradientIn,   // dQ, dK, dV that have come home
  kGradParts,    // other ranks' gradients of the slice of a bucket that this rank adds up
  // What a hand-over sends, and what it has received: activations, or their gradients.
  kActivationOut,
  kActivationIn,
};

inline constexpr int kNumBufferRoles = static_cast<int>(BufferRole::kActivationIn) + 1;
struct Buffer {
  BufferRole role = BufferRole::kQkvOut;
  int64_t bytes = 0;
  bool operator==(const Buffer&) const = default;
};

struct GradientExchange;

/// The part of the model whose phases a rank plays. Without a pipeline there is one stage.
struct Stage {
  int index = 0;  // in the order of forward
  int count = 1;
  Range layers;  // of the model; empty on a dedicated server
  bool is_first() const { return index == 0; }
  bool is_last() const { return index + 1 == count; }
  bool operator==(const Stage&) const = default;
};

/// What hand-overs of a nano-batch carry, in bytes: its rows at home, with those ranks that have
/// them on the stages before and behind. Forward sends to the next stage what it receives from the
/// previous one; backward's gradients of the same rows go the other way.
struct HandOverMessages {
  MessageList with_previous, with_next;
};

/// The operations are in an order in which they may be played: an operation waits only for earlier
/// ones.
struct Program {
  std::vector<Op> ops;
  std::vector<Buffer> buffers;
  // This rank's part of each exchange of the step. All ranks have the exchanges in the same order.
  std::vector<std::shared_ptr<const AttentionExchange>> exchanges;
  // [exchange] How many of its layer steps this rank plays.
  std::vector<int> layer_steps;
  Stage stage;               // whose phases this rank plays
  int num_nano_batches = 0;  // of the step
  // [nano-batch] Empty without a pipeline, and on a dedicated server.
  std::vector<HandOverMessages> hand_overs;
  // What this rank sends and receives of gradients; null where the program has no bucket.
  std::shared_ptr<const GradientExchange> gradients;

  /// The messages of a communication. For other operations they are empty. All communications of an
  /// exchange, or of a bucket, share the lists.
  const MessageList& sends(const Op& op) const;
  const MessageList& receives(const Op& op) const;
};

const char* op_name(OpKind kind);
const char* pass_name(Pass pass);
const char* task_set_name(TaskSet set);
const char* buffer_name(BufferRole role);
/// The name of an operation in errors and traces: "forward layer 3 dispatch of nano-batch 1", or,
/// where this rank only serves, "forward dispatch of exchange 2, layer step 1".
std::string describe(const Op& op);

/// The most nano-batches at a time whose forward this rank has begun and whose backward it has not
/// ended. It keeps their activations.
int most_in_flight(const Program& program);

/// A table for people, with a line for each operation: stream, dependencies, buffers, bytes, FLOPs.
std::string print_program(const Program& program);

}  // namespace distca
