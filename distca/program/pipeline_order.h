#pragma once
// The order in which the ranks of a pipeline make their visits (visit.h), from the ticks of its
// stages. It is made for the whole step, so all ranks agree on it: on the exchanges, each of which
// wants a plan, and on the order of all messages.
//
//   const PipelineShape shape{.layers = {{0, 4}, {4, 8}}, .nano_batches = 8};
//   const PipelineOrder order = pooled_order(shape, aligned_ticks(2, 4, /*trains=*/true));
//   // For each of order.exchanges: a plan of its nano-batches, and this rank's part of it.
//   request.stage = stage_part(shape, order, stage, parts);  // ProgramRequest request
//
// Uneven stages. The messages of an exchange are the same in all its layer steps. So a tick has an
// exchange for the layer steps that all its working stages have, and further ones for those that
// only the stages with more layers have; the others serve there alone.
//
// Order of p2p operations. At the end of a tick first all that goes between stages 0 and 1, 2
// and 3, ..., then between stages 1 and 2, 3 and 4, ... So where communications end only in the
// order in which they were started (NCCL), a stage waits for its neighbours, and not for all
// stages.
//
// The functions are pure; any thread may call them.

#include <cstdint>
#include <memory>
#include <vector>

#include "distca/base/integers.h"
#include "distca/plan/pipeline/ticks.h"
#include "distca/plan/pipeline/weight_gradients.h"
#include "distca/program/program.h"
#include "distca/program/visit.h"

namespace distca {

struct PipelineShape {
  std::vector<Range> layers;  // [stage] Stage::layers; none is empty
  int nano_batches = 0;       // number of the step's nano-batches
  /// Nano-batches of a micro-batch, played in turn: 2 under ping-pong, else 1. Nano-batch n belongs
  /// to micro-batch n / slots; the last micro-batch may have fewer.
  int slots = 2;
  int virtual_stages = 1;  // in each stage

  /// The nano-batch that a stage plays in this slot of a tick; -1 if there is none.
  int nano_batch(const TickStage& stage, int slot) const {
    const int nano = stage.micro_batch * slots + slot;
    return stage.micro_batch >= 0 && nano < nano_batches ? nano : -1;
  }
  int micro_batches() const { return static_cast<int>(ceil_div(nano_batches, slots)); }
};

/// An exchange of the step, with the nano-batches that it pools.
struct OrderedExchange {
  int tick = 0;  // the tick of the first visit to it
  int slot = 0;
  Pass pass = Pass::kForward;
  int layer_steps = 0;
  std::vector<int> nano_batches;  // [stage] whose rows it carries. A stage that only serves has -1.
};

struct PipelineOrder {
  std::vector<OrderedExchange> exchanges;
  /// [stage][slot] The visits of each rank of a stage, and at last, [stages][slot], those of a rank
  /// that only serves.
  std::vector<std::vector<std::vector<Visit>>> visits;
};

/// Core attention is pooled: all ranks visit all exchanges. Stages may play other passes in a tick;
/// then the tick has an exchange for each pass, and the two are visited together, layer step by
/// layer step. What a stage plays of weight gradients in a tick is spread evenly over the tick's
/// layer steps.
PipelineOrder pooled_order(const PipelineShape& shape, const std::vector<Tick>& ticks,
                           const WeightGradients& weight_gradients = {});

/// Core attention stays on its stage: a rank visits only the exchanges of its own nano-batches, and
/// no other stage takes part in them (plain packing, to be compared with). There is one exchange
/// for each virtual stage and nano-batch, [virtual_stage x nano_batches + nano_batch]; a rank's
/// part of it is that of a plan in which its own stage alone works and serves. Where no document is
/// cut, nothing travels. The shape must have one slot (CHECK).
PipelineOrder at_home_order(const PipelineShape& shape, const std::vector<Tick>& ticks,
                            const WeightGradients& weight_gradients = {});

/// The part of a rank of this stage, or, with stage = number of stages, of a rank that only serves.
/// `exchanges`: the rank's own, in the order of order.exchanges. P2p messages are left to the
/// caller to add (StagePart::p2p_messages).
StagePart stage_part(const PipelineShape& shape, const PipelineOrder& order, int stage,
                     const std::vector<std::shared_ptr<const AttentionExchange>>& exchanges);

/// The p2p messages of one nano-batch on this rank, where rank = stage * replicas + replica.
/// All its rows at home, which take `bytes`, go to the same replica of the next stage. With virtual
/// stages, that of the last stage is the first one.
P2pMessages p2p_messages(const Stage& stage, int rank, int replicas, int64_t bytes);

}  // namespace distca
