#pragma once
// Operations of one rank, one after another as a schedule calls for them: their messages, buffers,
// FLOPs, and what they have to wait for. Thread rule: one thread.

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "distca/program/overlap.h"
#include "distca/program/program.h"

namespace distca {

// The schedules, one file each.
Program build_none(const ProgramRequest& request);
Program build_within(const ProgramRequest& request);
Program build_ping_pong(const ProgramRequest& request);

class ProgramBuilder {
 public:
  enum class Waiting {
    kForWhatIsNeeded,
    kForThePrevious,  // each operation waits for the end of the one before
  };

  /// `slots`: nano-batches under way at a time; nano-batch n has the buffers of slot n % slots.
  ProgramBuilder(const ProgramRequest& request, int slots, Waiting waiting);

  int num_layers() const { return static_cast<int>(request_.model.num_layers); }
  int num_nano_batches() const { return static_cast<int>(request_.nano_batches.size()); }
  bool trains() const { return request_.kind == ProgramRequest::Kind::kTrain; }
  /// The sets in which the tasks are attended where exchanges hide under those at home: only sets
  /// with tasks, but at least one.
  const std::vector<TaskSet>& partial_sets(int nano_batch) const;

  // Each appends an operation, unless this rank has no part in it: a dedicated server has no
  // weights.
  void embed(Pass pass, int nano_batch);
  void pre_attention(Pass pass, int layer, int nano_batch);
  void dispatch(Pass pass, int layer, int nano_batch);
  void redispatch(int layer, int nano_batch);  // nothing where keys are kept
  void core_attention(Pass pass, int layer, int nano_batch, TaskSet tasks);
  void combine(Pass pass, int layer, int nano_batch);
  void post_attention(Pass pass, int layer, int nano_batch);
  void loss(Pass pass, int nano_batch);
  void grad_reduce();
  void optimizer();

  Program take() { return std::move(program_); }

 private:
  struct Nano {
    const AttentionExchange* exchange = nullptr;
    bool kept = false;  // Q, K, V stay until backward
    std::vector<TaskSet> partial_sets;
    // Operations, -1: none yet.
    int32_t last = -1;            // that the next phase goes on from
    int32_t last_attention = -1;  // of the layer
    int32_t last_combine = -1;
    std::vector<int32_t> forward_pre_attention;  // [layer]
  };
  /// Who has used a buffer; operations, -1: nobody.
  struct Use {
    int32_t writer = -1;           // a compute operation, or a communication that receives
    int32_t sender = -1;           // a communication that sends from it
    std::vector<int32_t> readers;  // compute operations, since it was written
  };

  Nano make_nano(const NanoPart& part) const;
  Op make_op(OpKind kind, Pass pass, int layer, int nano_batch) const;
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
  double linear_flops(Pass pass, int nano_batch, int64_t weights) const;

  const ProgramRequest& request_;
  int slots_;
  Waiting waiting_;
  Program program_;
  std::vector<Nano> nanos_;
  std::map<std::tuple<BufferRole, int, int>, int32_t> buffers_;  // role, slot, layer
  std::vector<Use> uses_;                                        // [buffer]
};

}  // namespace distca
