#pragma once
// Builds the program of one rank. An overlap mode names operations in its order, and the builder
// adds their messages, buffers and FLOPs, and finds what they have to wait for.
//
//   ProgramBuilder builder(request, /*slots=*/1, ProgramBuilder::Waiting::kForWhatIsNeeded);
//   builder.pre_attention(Pass::kForward, /*layer=*/0, /*nano_batch=*/0);
//   builder.dispatch(Pass::kForward, 0, 0);
//   builder.core_attention(Pass::kForward, 0, 0, TaskSet::kAll);
//   const Program program = builder.take();
//
// A builder belongs to one thread.

#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <vector>

#include "distca/program/gradient_exchange.h"
#include "distca/program/overlap.h"
#include "distca/program/program.h"

namespace distca {

// The overlap modes, one file each.
Program build_none(const ProgramRequest& request);
Program build_within(const ProgramRequest& request);
Program build_ping_pong(const ProgramRequest& request);

class ProgramBuilder {
 public:
  enum class Waiting {
    kForWhatIsNeeded,  // for what an operation reads, and for buffers to be free
    kForThePrevious,   // for the end of the operation before it
  };

  /// Borrows the request. `slots` is the number of nano-batches under way at a time. Nano-batch n
  /// uses the buffers of slot n % slots.
  ProgramBuilder(const ProgramRequest& request, int slots, Waiting waiting);

  int num_layers() const { return static_cast<int>(request_.model.num_layers); }
  int num_nano_batches() const { return static_cast<int>(request_.nano_batches.size()); }
  bool trains() const { return request_.kind == ProgramRequest::Kind::kTrain; }
  /// The sets of tasks, in their order, for a mode in which exchanges run under the tasks at home.
  /// Only sets with tasks are listed, but at least one (AttentionExchange::partial_sets).
  const std::vector<TaskSet>& partial_sets(int nano_batch) const;

  // Each of these appends an operation, unless this rank has no part in it: a dedicated server has
  // no weights.
  void embed(Pass pass, int nano_batch);
  void pre_attention(Pass pass, int layer, int nano_batch);
  void dispatch(Pass pass, int layer, int nano_batch);
  void redispatch(int layer, int nano_batch);  // appends nothing where servers keep the keys
  void core_attention(Pass pass, int layer, int nano_batch, TaskSet tasks);
  void combine(Pass pass, int layer, int nano_batch);
  void post_attention(Pass pass, int layer, int nano_batch);
  void loss(Pass pass, int nano_batch);
  /// Sums what has not been summed yet of the gradients, and updates the weights.
  void update();

  Program take() { return std::move(program_); }  // the program; ends the building

 private:
  struct Nano {
    const AttentionExchange* exchange = nullptr;
    bool kept = false;  // servers keep Q, K, V until backward
    std::vector<TaskSet> partial_sets;
    // Indices of operations. -1: there is none yet.
    int32_t last = -1;            // from which the next phase goes on
    int32_t last_attention = -1;  // the last core_attention of the layer
    int32_t last_combine = -1;
    std::vector<int32_t> forward_pre_attention;  // [layer]
  };
  /// Which operations have used a buffer, by index. -1: none.
  struct Use {
    int32_t writer = -1;           // the compute operation or the receiving communication
    int32_t sender = -1;           // the communication that sends from it
    std::vector<int32_t> readers;  // compute operations, since it was written last
  };

  /// A bucket of gradients on its way.
  struct Bucket {
    int phases_left = 0;  // nano-batches' phases of backward that still add to it
    int32_t ready = -1;   // the operation that was the last to add to it
    int32_t reduce = -1, add = -1, gather = -1;  // operations; -1: there is none
    int32_t parts = -1;                          // the buffer of what is received
    int issued_at = 0;                           // messages_
  };
  /// What waits for its turn on the wire.
  struct Queued {
    int32_t bucket;
    bool is_gather;
  };

  Nano make_nano(const NanoPart& part) const;
  Op make_op(OpKind kind, Pass pass, int layer, int nano_batch) const;
  uint32_t last_attention_tag() const;
  Op make_communication(OpKind kind, Pass pass, int layer, int nano_batch) const;
  int32_t buffer(BufferRole role, int layer, int nano_batch, const MessageList& messages);
  int32_t buffer(BufferRole role, int nano_batch, const MessageList& messages) {
    return buffer(role, -1, nano_batch, messages);
  }
  int32_t qkv_in(int layer, int nano_batch);
  int32_t accumulators(int nano_batch);
  void wait_for(Op& op, int32_t other) const;
  void wait_for_buffers(Op& op);
  int32_t append(Op op);
  // Of gradients (program_builder_gradients.cc).
  void count_phases();
  void phase_done(OpKind phase, int layer);
  void message_issued();
  Op make_bucket_op(OpKind kind, int32_t bucket) const;
  void issue(const Queued& queued);
  void add_first();
  void finish_sums();
  double linear_flops(Pass pass, int nano_batch, int64_t weights) const;

  const ProgramRequest& request_;
  int slots_;
  Waiting waiting_;
  Program program_;
  std::vector<Nano> nanos_;
  std::map<std::tuple<BufferRole, int, int>, int32_t> buffers_;  // role, slot, layer
  std::vector<Use> uses_;                                        // [buffer]
  std::vector<Bucket> buckets_;
  std::deque<Queued> queue_;
  std::deque<int32_t> in_flight_;    // buckets whose parts have not been added yet
  std::vector<int32_t> free_parts_;  // buffers
  int messages_ = 0;                 // of core attention, issued in backward
};

}  // namespace distca
