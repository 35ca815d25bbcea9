#pragma once
// Visits: what a rank does, in order, where several stages of a pipeline share core attention. A
// program is built from visits (program/overlap.h); program/pipeline_order.h makes them from ticks.
//
// Words. A tick says for each stage which micro-batch it plays, and in which pass. A micro-batch is
// a pair of nano-batches under ping-pong, which are played in two slots in turn, and otherwise one
// nano-batch. The core attention of all nano-batches of a tick and slot is pooled in one exchange.
// In its visit, a rank plays the layers of its own stage for its own nano-batch, or, where it has
// none, serves attention alone. Every rank visits every exchange, in the same order.
//
// Plain values; any thread may read them.

#include <memory>
#include <vector>

#include "distca/base/integers.h"
#include "distca/cost/pass.h"
#include "distca/plan/attention_exchange.h"
#include "distca/program/program.h"

namespace distca {

/// A nano-batch's activations go to the next stage, or their gradients to the previous one.
struct P2pOp {
  Pass pass = Pass::kForward;
  int nano_batch = 0;
  bool is_receive = false;  // this rank receives; else it sends
  /// Of the virtual stages that the stage before the boundary holds, that before it.
  int virtual_stage = 0;
};

/// The gradients by the matrices of a layer, which backward of a nano-batch's phases has left.
struct WeightGradientOp {
  int nano_batch = 0;
  int layer = 0;  // index in the model
  /// They are computed in this layer step of the visit, counted from 0 in the order in which they
  /// are played, once what the rank has to send in it is under way. It is 0 in a visit without any.
  int turn = 0;
};

struct Visit {
  Pass pass = Pass::kForward;
  int tick = -1;  // index in the step. Without a pipeline, it is -1.
  /// The nano-batch of the step whose phases this rank plays. -1 means that it only serves.
  int nano_batch = -1;
  /// The exchange of the step. -1 means that this rank does nothing but `p2p_ops`.
  int exchange = -1;
  bool redispatched = false;  // in backward, Q, K, V are sent again; else servers have kept them
  /// The layers of the model that go through the exchange for the rank's own nano-batch, in
  /// ascending order forward and in descending order backward. The range is empty where the rank
  /// only serves.
  Range layers;
  /// How many layers of the nano-batch have gone through the exchange in earlier visits of this
  /// pass: the layer step of the first of `layers`. Above 0 only where layers have several windows.
  int first_step = 0;
  /// True if the visit is played together with the one before it, layer step by layer step. It is
  /// then the other pass of the same tick, where some stages play forward and some backward. Both
  /// have as many layer steps.
  bool is_beside = false;
  /// Some rank begins with what another stage sent just before. So all ranks first send and receive
  /// in both slots, and one slot's messages travel under the other's compute.
  bool starts_late = false;
  /// In backward: the phases of the rank's own nano-batch leave the gradients by matrices for
  /// later.
  bool leaves_weights = false;
  /// Weight gradients that were left before, by any nano-batch in the slot, and are computed during
  /// this visit. Turns ascend.
  std::vector<WeightGradientOp> weight_gradients;
  /// At the end of the visit, in this order, which agrees with that of all other ranks.
  std::vector<P2pOp> p2p_ops;
};

/// This rank's part of an exchange.
struct StageExchange {
  std::shared_ptr<const AttentionExchange> part;
  int layer_steps = 0;  // layers that go through it: the same on all ranks
};

/// The part of a rank in the step of a pipeline.
struct StagePart {
  Stage stage;                           // without layers on a dedicated server
  int num_nano_batches = 0;              // number of the step's nano-batches
  std::vector<StageExchange> exchanges;  // all exchanges of the step, the same ones on all ranks
  /// [slot] At most as many as the overlap mode plays in turn (overlap.h).
  std::vector<std::vector<Visit>> slots;
  std::vector<P2pMessages> p2p_messages;  // [nano-batch]; empty on a dedicated server
};

}  // namespace distca
