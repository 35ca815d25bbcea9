#pragma once
// Builds the program of one rank. An overlap mode names operations in its order, and the builder
// adds their messages, buffers and FLOPs, and finds what they have to wait for.
//
//   ProgramBuilder builder(request, /*slots=*/1, ProgramBuilder::Waiting::kForWhatIsNeeded);
//   const Visit& visit = builder.visits(/*slot=*/0)[0];
//   builder.begin_visit(visit);
//   builder.start_layer(visit, /*turn=*/0);
//   builder.dispatch(visit, 0);
//   builder.core_attention(visit, 0, TaskSet::kAll);
//   const Program program = builder.take();  // where it trains, once all backward phases are in
//
// A builder belongs to one thread.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "distca/program/gradient_exchange.h"
#include "distca/program/overlap.h"
#include "distca/program/program.h"
#include "distca/program/visit.h"

namespace distca {

// The overlap modes, one file each.
Program build_none(const ProgramRequest& request);
Program build_within(const ProgramRequest& request);
/// Ping-pong where no ranks divide layers, and where they do.
Program build_in_turn(const ProgramRequest& request);
Program build_counter_phase(const ProgramRequest& request);

class ProgramBuilder {
 public:
  enum class Waiting {
    kForWhatIsNeeded,  // for what an operation reads, and for buffers to be free
    kForThePrevious,   // for the end of the operation before it
  };

  /// Borrows the request. `slots` is the number of nano-batches under way at a time, each of which
  /// has buffers of its own. Without a pipeline, nano-batch n is played in slot n % slots.
  ProgramBuilder(const ProgramRequest& request, int slots, Waiting waiting);

  const std::vector<Visit>& visits(int slot) const { return part_.slots[slot]; }
  /// The visits that are played together, of which `first` is the first. There are none behind the
  /// last one.
  std::span<const Visit> beside(int slot, size_t first) const;
  /// How many layer steps a visit has. They are played in turns 0, 1, ...
  int layer_steps(const Visit& visit) const;
  /// The sets of tasks, in their order; `partial` for a mode in which exchanges run under the tasks
  /// at home. Only sets with tasks are listed, but at least one (AttentionExchange::partial_sets).
  const std::vector<TaskSet>& task_sets(const Visit& visit, bool partial) const;

  /// Calls this, until it is given another one, whenever a gather_rows or sum_rows has begun: what
  /// it appends runs meanwhile. Its argument is what `seams` counts of it.
  void set_seam(std::function<void(int)> seam) { seam_ = std::move(seam); }
  /// How much travels between this rank and the others of its server, in rows, in begin_visit,
  /// end_visit, start_layer and end_layer of a visit: a gather of pairs counts 2.
  struct Seams {
    int begin_visit = 0, end_visit = 0, start_layer = 0, end_layer = 0;
  };
  Seams seams(const Visit& visit) const;

  // Each of these appends operations of a turn, unless this rank has no part in them: only who has
  // weights and a nano-batch of its own plays phases.

  /// embed, or the loss of backward, where a stage begins with them.
  void begin_visit(const Visit& visit);
  /// The loss, or the embed of backward, where a stage ends with them; then the p2p operations.
  void end_visit(const Visit& visit);
  /// pre_attention of the layer, in backward post_attention; where ranks divide them, with the
  /// operations between their parts, one after another.
  void start_layer(const Visit& visit, int turn);
  /// post_attention of the layer, in backward pre_attention, likewise.
  void end_layer(const Visit& visit, int turn);

  void dispatch(const Visit& visit, int turn);
  void redispatch(const Visit& visit, int turn);  // nothing where the visit needs none
  void core_attention(const Visit& visit, int turn, TaskSet tasks);
  /// The tasks in these shares (plan/attention_parts.h), if there are any. A rank without tasks has
  /// an operation where shares begin at 0.
  void core_attention(const Visit& visit, int turn, const Range& shares);
  void combine(const Visit& visit, int turn);
  /// The visit's weight gradients of this turn.
  void weight_gradients(const Visit& visit, int turn);

  /// Ends the building. Where the program trains and this rank has weights, it sums what has not
  /// been summed yet of the gradients, and updates the weights.
  Program take();

 private:
  /// The state of a nano-batch. Operations are given by their indices; -1 means that there is none
  /// yet.
  struct Nano {
    int slot = 0;
    int64_t tokens = 0;  // at home
    int32_t last = -1;   // from which the next phase goes on
    // [layer of the stage]
    std::vector<int32_t> forward_pre_attention, backward_pre_attention;
    int32_t last_weight_gradient = -1;
    int32_t received = -1;  // the buffer of what another stage sent
  };
  struct Exchange {
    const AttentionExchange* part = nullptr;
    int slot = 0;
    bool is_beside = false;
    bool kept = false;  // servers keep Q, K, V until backward
    std::vector<TaskSet> partial_sets;
    int first_step = 0;  // the layer steps of the exchanges before it
    // Indices of operations of the layer step under way. -1 means that there is none yet.
    int32_t last_attention = -1, last_combine = -1;
    // [Pass] Made where the first part is played.
    std::array<std::unique_ptr<const AttentionShares>, 2> shares;
  };
  /// The operations that have used a buffer, by index. -1 means none.
  struct Use {
    int32_t writer = -1;           // the compute operation or the receiving communication
    int32_t sender = -1;           // the communication that sends from it
    std::vector<int32_t> readers;  // compute operations, since it was written last
  };

  /// A bucket of gradients on its way.
  struct Bucket {
    int phases_left = 0;  // nano-batches' phases of backward that still add to it
    int number = 0;       // from which its tags are made
    int32_t ready = -1;   // the operation that was the last to add to it
    int32_t reduce = -1, add = -1, gather = -1;  // operations; -1 means none
    int32_t parts = -1;                          // the buffer of what is received
    int issued_at = 0;                           // messages_
  };
  /// A bucket that waits for its turn on the wire.
  struct Queued {
    int32_t bucket;
    bool is_gather;
  };

  void add_exchanges();
  void add_visit(const Visit& visit, int slot);
  bool trains() const { return request_.kind == ProgramRequest::Kind::kTrain; }
  int layer_step(const Visit& visit, int turn) const;
  bool plays_phases(const Visit& visit) const {
    return request_.holds_weights && visit.nano_batch >= 0;
  }
  Exchange& exchange_of(const Visit& visit) { return exchanges_[visit.exchange]; }
  Nano& nano_of(const Visit& visit) { return nanos_[visit.nano_batch]; }
  int32_t last_of(const Visit& visit) const {
    return visit.nano_batch < 0 ? -1 : nanos_[visit.nano_batch].last;
  }
  Op make_op(OpKind kind, Pass pass, int layer, int nano_batch) const;
  Op make_phase(OpKind kind, const Visit& visit, int turn) const;
  Op make_of_exchange(OpKind kind, const Visit& visit, int turn) const;
  uint32_t last_attention_tag() const;
  uint32_t last_p2p_tag() const;
  int num_boundaries() const { return part_.stage.count * part_.stage.virtual_stages - 1; }
  int64_t first_tensor_tag() const;
  int64_t tensor_ops_in_nano_batch() const;
  Op make_communication(OpKind kind, const Visit& visit, int turn) const;
  Op make_dispatch(OpKind kind, const Visit& visit, int turn);
  int32_t new_buffer(BufferRole role);
  void enlarge(int32_t buffer, int64_t bytes);
  int32_t buffer(BufferRole role, const Exchange& exchange, int64_t bytes, int layer = -1);
  int32_t take_free(std::vector<int32_t>& free, BufferRole role, int64_t bytes);
  int32_t qkv_in(const Visit& visit, int turn);
  int32_t sums_of_gradients(const Exchange& exchange);
  /// The messages of its exchange that core attention needs and fills.
  struct MessagesUsed {
    bool keys = false;     // received Q, K, V; backward adds to their gradients
    bool queries = false;  // some of its queries were received
  };
  void append_attention(Op op, const Visit& visit, int turn, int64_t pairs,
                        const MessagesUsed& used);
  void wait_for(Op& op, int32_t other) const;
  void wait_for_buffers(Op& op);
  int32_t append(Op op);
  // The functions of core attention are in program_builder_attention.cc, those of phases in
  // program_builder_phases.cc.
  bool is_divided() const { return part_.stage.tensor.size > 1; }
  bool embeds(const Visit& visit) const;
  void embed(const Visit& visit);
  void loss(const Visit& visit);
  void phase(OpKind kind, const Visit& visit, int turn);
  void gather_rows(OpKind of_phase, const Visit& visit, int turn);
  void sum_rows(OpKind of_phase, const Visit& visit, int turn);
  void p2p(const Visit& visit, const P2pOp& what);
  void go_on_from(int32_t op, Nano& nano);
  void append_seam(Op op, const Visit& visit);
  void use_rows(Op& op, const Visit& visit);
  const TensorRows& tensor_rows_of(const Visit& visit) const;
  void wait_for_attention(Op& op, const Visit& visit);
  Op make_of_tensor(OpKind kind, OpKind of_phase, const Visit& visit, int turn) const;
  double linear_flops(OpKind kind, const Visit& visit) const;
  int64_t weights_of(OpKind kind) const;
  // The functions of gradients are in program_builder_gradients.cc.
  void count_phases();
  void phase_done(OpKind phase, int layer);
  void message_issued();
  Op make_bucket_op(OpKind kind, int32_t bucket) const;
  void issue_first();
  void add_first();
  void send_queued();
  void finish_sums();
  void update();

  const ProgramRequest& request_;
  int slots_;
  Waiting waiting_;
  StagePart part_;
  Program program_;
  std::vector<Nano> nanos_;
  std::vector<Exchange> exchanges_;
  /// The buffer of each role, slot, is_beside and layer.
  std::map<std::tuple<BufferRole, int, bool, int>, int32_t> buffers_;
  std::vector<Use> uses_;                               // [buffer]
  std::vector<std::vector<int32_t>> free_activations_;  // [slot] buffers
  std::vector<Bucket> buckets_;
  /// The elements that each phase of a layer adds to: a search over all phases at the end of each
  /// would take the square of the layers.
  std::multimap<std::pair<OpKind, int>, Range> phase_elements_;
  std::deque<Queued> queue_;
  std::deque<int32_t> in_flight_;    // buckets whose parts have not been added yet
  std::vector<int32_t> free_parts_;  // buffers
  std::function<void(int)> seam_;
  std::map<std::tuple<int32_t, Pass, Range>, int> parts_;  // by exchange, pass and shares
  int messages_ = 0;              // messages of core attention issued in backward so far
  int messages_of_backward_ = 0;  // messages of core attention in all of backward
};

}  // namespace distca
