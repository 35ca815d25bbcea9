#pragma once
// A program is one rank's training step: a list of operations on two streams, compute and
// communication, with their dependencies and buffers. It is built from the step's plans, the
// model's shape and an overlap mode (program/overlap.h), checked by a validator of its own
// (program/validate/validate.h), and played by runtime/executor (paper 4.1, figures 7 and 8). A
// program is a plain value, which any thread may read.
//
//   const Program program = build_program(request);  // program/overlap.h
//   fmt::print("{}", print_program(program));
//
// Words. An exchange (plan/attention_exchange.h) is what a rank sends, receives and computes under
// one plan. A communication is one operation on the stream kComm: the kDispatch, kRedispatch or
// kCombine of one layer of an exchange, the kP2p of a nano-batch from a stage of a pipeline to
// the next (program/visit.h), the kGatherRows or kSumRows of a phase that ranks divide
// (program/tensor_rows.h), or the kGradReduce, kGradGather or kWeightGather of a bucket of
// gradients (program/gradient_exchange.h).
//
// Peers. A server is one rank or, with tensor parallelism, some neighbours that divide the matrices
// of its layers. The messages of an exchange and of a kP2p name servers, and go between ranks of
// equal index in them; those of kGatherRows and kSumRows name the ranks of this rank's own server
// by index; those of buckets name ranks of the step. Program::rank_of() makes ranks of all of them.
//
// How a program is played. Compute operations run in the order of the list. A communication starts
// where it stands in the list, once all operations in its `wait_for` are over and all sends in its
// `wait_sends` have left. Then what travels is packed into its buffer `out`, all its messages are
// issued, and only then the next operation of the list begins. The communication is finished just
// before the first operation that names it in `wait_for`: all that it receives has landed in `in`,
// and what came home (kCombine) or came from another stage (kP2p) is put in its place. An operation
// that names it in `wait_sends` also waits until its sends have left, so that `out` may be written
// again. Communications under way have no order among each other, except that in which they were
// started.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/integers.h"
#include "distca/cost/pass.h"
#include "distca/plan/attention_exchange.h"
#include "distca/plan/attention_parts.h"

namespace distca {

enum class OpKind : uint8_t {
  kEmbed,           // token embedding
  kAttentionNorm,   // the norm of pre-attention, on this rank's rows; only where ranks divide it
  kPreAttention,    // norm, QKV projection, RoPE
  kDispatch,        // Q, K, V go to the servers; backward: dO, LSE, delta
  kRedispatch,      // Q, K, V go to the servers again, for backward, where servers do not keep them
  kCoreAttention,   // this rank computes its tasks
  kCombine,         // O, LSE come home; backward: dQ, dK, dV
  kOutProjection,   // the output projection, only where ranks divide post-attention
  kMlpNorm,         // its norm, on this rank's rows, likewise
  kPostAttention,   // output projection, residual, norm, MLP
  kWeightGradient,  // gradients by a layer's matrices, where backward of its phases has left them
  kLoss,            // final norm, head, loss; forward does the work of backward, too
  kGatherRows,      // rows of the ranks that divide a phase go to all of them, which it reads
  kSumRows,         // the rank that has a row sums what these ranks computed of it
  kP2p,           // a nano-batch's activations go to the next stage; backward: their gradients back
  kGradReduce,    // a bucket's gradients go to the ranks that add them up
  kGradAdd,       // this rank adds up its slice of a bucket, in rank order
  kGradGather,    // a bucket's sums go to all other ranks
  kGradNorm,      // the norm of all gradients
  kOptimizer,     // clipping and update of what this rank updates of a bucket
  kWeightGather,  // a bucket's updated weights go to all other ranks
};
inline constexpr int kNumOpKinds = static_cast<int>(OpKind::kWeightGather) + 1;

enum class Stream : uint8_t { kCompute, kComm };

struct Op {
  OpKind kind = OpKind::kEmbed;
  Pass pass = Pass::kForward;
  Stream stream = Stream::kCompute;
  TaskSet tasks = TaskSet::kAll;  // the tasks that kCoreAttention computes
  // The part of all tasks that kCoreAttention computes: its index in Program::attention_parts. With
  // -1 it computes `tasks`.
  int part = -1;
  // The layer, micro-batch and nano-batch that the operation works for at home. The layer is -1
  // where it belongs to none. All three are -1 where it belongs to the whole step, or to a visit of
  // a pipeline in which this rank only serves.
  int layer = -1;
  int micro_batch = -1;  // nano-batches played together (in ping-pong two); index in the step
  int nano_batch = -1;   // index in the step
  // The tick of the pipeline's visit to which the operation belongs (program/visit.h): its index in
  // the step, the same on both sides of a message. It is -1 for operations of the whole step, and
  // without a pipeline.
  int tick = -1;
  // The exchange of a core attention or communication, as its index in the program, and the index
  // of the layer among those that go through this exchange, from 0. Both are the same on all ranks,
  // and -1 where the operation belongs to no exchange.
  int32_t exchange = -1;
  int layer_step = -1;
  int32_t bucket = -1;      // index of its bucket of gradients; -1 means none
  bool is_receive = false;  // true if a kP2p receives; otherwise it sends
  // The phase that reads what a kGatherRows carries, or that wrote what a kSumRows carries.
  OpKind of_phase = OpKind::kEmbed;
  // True if backward of kPreAttention or kPostAttention leaves the gradients by matrices to the
  // kWeightGradient of its layer and nano-batch.
  bool leaves_weights = false;
  std::vector<int32_t> wait_for;    // earlier operations that must be over before this one begins
  std::vector<int32_t> wait_sends;  // earlier communications whose sends must have left
  // The tag of all messages of a communication, the same on both sides. No other operation of the
  // step has it.
  uint32_t tag = 0;
  // The buffers from which a communication sends and into which it receives. They are -1 where
  // nothing is sent or received, and where gradients or weights travel without a buffer.
  int32_t out = -1;
  int32_t in = -1;
  // Buffers that the operation itself reads and writes. Core attention reads what was received and
  // writes what will be returned. A communication, when it starts, reads what it packs and writes
  // what it packs into.
  std::vector<int32_t> reads, writes;
  double flops = 0;  // FLOPs of matrix products; in core attention, for the pairs that masks allow
};
/// Returns true if operations of this kind are communications.
bool communicates(OpKind kind);
/// Returns true for kGatherRows and kSumRows.
bool is_of_tensor(OpKind kind);
/// Returns true if operations of this kind sum gradients, or update or send weights. All workers do
/// them alike, whatever tokens they were given.
bool is_of_weights(OpKind kind);
/// The content of the messages of an exchange's communication. Any other operation is a CHECK.
Content content_of(const Op& op);

/// The content of a buffer. At any time, a buffer of core attention belongs to one layer of one
/// exchange.
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
  // Activations, or their gradients, that a kP2p sends, and those that one has received.
  kActivationOut,
  kActivationIn,
  // All rows of a nano-batch at home, which ranks of a server have gathered: each sends its own
  // ones from there, and receives the others. In backward of a layer, next to each other for each
  // row: its gradient, and the input of the phase's matrices.
  kRows,
  kPartsOut,  // parts of all rows, which this rank has computed
  kPartsIn,   // parts of its own rows, which other ranks have computed
};

inline constexpr int kNumBufferRoles = static_cast<int>(BufferRole::kPartsIn) + 1;
struct Buffer {
  BufferRole role = BufferRole::kQkvOut;
  int64_t bytes = 0;
  bool operator==(const Buffer&) const = default;
};

struct GradientExchange;

/// A rank's place among those that divide the layers' matrices by tensor parallelism.
struct TensorPlace {
  int size = 1;
  int index = 0;
  /// Its part of `count` rows, columns or heads. Where `size` does not divide them, ranks have one
  /// more or less.
  Range part(int64_t count) const { return {count * index / size, count * (index + 1) / size}; }
  /// The rank of the step that has this index in a server.
  int rank_of(int server) const { return server * size + index; }
  bool operator==(const TensorPlace&) const = default;
};

/// The part of the model whose phases a rank plays. Without a pipeline there is one stage.
struct Stage {
  int index = 0;  // in the order of forward
  int count = 1;
  /// Its layers of the model; empty on a dedicated server. With several virtual stages, from the
  /// first one's to the last one's, between which lie those of other stages.
  Range layers;
  TensorPlace tensor;  // its part of their matrices
  int virtual_stages = 1;
  /// The layers of one of its virtual stages, all of which have as many, and lie `count` of them
  /// apart.
  Range layers_of(int virtual_stage) const {
    const int64_t each = layers.size() / ((virtual_stages - 1) * count + 1);
    const int64_t begin = layers.begin + virtual_stage * count * each;
    return {begin, begin + each};
  }
  int64_t num_layers() const { return layers_of(0).size() * virtual_stages; }
  bool holds(int64_t layer) const {
    return layers.contains({layer, layer + 1}) &&
           (layer - layers.begin) % (layers_of(0).size() * count) < layers_of(0).size();
  }
  bool is_first() const { return index == 0; }
  bool is_last() const { return index + 1 == count; }
  bool operator==(const Stage&) const = default;
};

/// The messages of a nano-batch between stages, point-to-point, in bytes. They carry its rows at
/// home, to and from the ranks that have them on the stages before and behind. Forward sends to the
/// next stage what it receives from the previous one; backward's gradients of the same rows go the
/// other way.
struct P2pMessages {
  MessageList with_previous, with_next;
};

/// The messages of a nano-batch between the ranks of a server (tensor_rows.h), which all layers
/// share. Peers are indices in the server. Rows lie without gaps in their buffers.
struct TensorRows {
  int64_t rows = 0;       // all ranks of the server have them together
  int64_t row_bytes = 0;  // hidden_size numbers of the compute type
  /// From and into a buffer of all rows. This rank sends its own ones from their place, to each
  /// peer the same.
  MessageList gather_sends, gather_receives;
  /// Two vectors a row, likewise.
  MessageList pair_sends, pair_receives;
  /// From a buffer of all rows, and into one of this rank's rows, once for each peer.
  MessageList part_sends, part_receives;
};

/// The operations are in an order in which they may be played: an operation waits only for earlier
/// ones.
struct Program {
  std::vector<Op> ops;
  std::vector<Buffer> buffers;
  // This rank's part of each exchange of the step. All ranks have the exchanges in the same order.
  std::vector<std::shared_ptr<const AttentionExchange>> exchanges;
  // [exchange][Pass] The parts in which its core attention is played in counter-phase; none
  // elsewhere. Parts of different layer steps may overlap. Empty without any.
  std::vector<std::array<std::vector<AttentionPart>, 2>> attention_parts;
  // [exchange] How many of its layer steps this rank plays.
  std::vector<int> layer_steps;
  Stage stage;               // whose phases this rank plays
  int server = 0;            // to which this rank belongs, as number stage.tensor.index
  int num_nano_batches = 0;  // number of the step's nano-batches
  // [nano-batch] Empty where no ranks divide phases, and on a dedicated server.
  std::vector<TensorRows> tensor_rows;
  // [nano-batch] Empty without a pipeline, and on a dedicated server.
  std::vector<P2pMessages> p2p_messages;
  // This rank's part of the sums of gradients; null where the program has no bucket.
  std::shared_ptr<const GradientExchange> gradients;

  /// The messages of a communication. For other operations they are empty. All communications of an
  /// exchange, or of a bucket, share the lists.
  const MessageList& sends(const Op& op) const;
  const MessageList& receives(const Op& op) const;
  /// The part that a kCoreAttention computes; null if it computes a set of tasks.
  const AttentionPart* part_of(const Op& op) const;
  /// The rank of the step that a message of this communication names as its peer.
  int rank_of(const Op& op, int peer) const;
};

const char* op_name(OpKind kind);
const char* task_set_name(TaskSet set);
const char* buffer_name(BufferRole role);
/// The name of an operation in errors and traces: "forward layer 3 dispatch of nano-batch 1", or,
/// where this rank only serves, "forward dispatch of exchange 2, layer step 1".
std::string describe(const Op& op);

/// The most nano-batches at a time whose forward this rank has begun and whose backward it has not
/// ended, but for weight gradients. It keeps their activations.
int most_in_flight(const Program& program);

/// A table for people, with a line for each operation: stream, dependencies, buffers, bytes, FLOPs.
std::string print_program(const Program& program);

}  // namespace distca
