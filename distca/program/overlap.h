#pragma once
// Builds the program of one rank (program.h) from its exchanges, the shape of the model and an
// overlap mode. The mode orders the operations, and so it decides which exchange runs under which
// compute. docs/program.md says how to add a mode (paper 4.1).
//
//   const NanoPart part{std::make_shared<const AttentionExchange>(
//       make_attention_exchange(PlanIndex(plan).exchange(rank), plan.shape, {}))};
//   const Program program = build_program({.nano_batches = {part, part}, .model = model});
//
// How buffers are reused. A buffer for messages of one pass serves all layers of all nano-batches
// that share a slot. Under ping-pong there are two slots, otherwise one. Received Q, K, V that are
// kept until backward have one buffer for each layer and slot. Accumulators are packed as soon as
// core attention has filled them, so one buffer serves all slots.
//
// What is sent between stages of a pipeline (visit.h) is sent as soon as it is computed, and
// received as soon as it is sent, often a visit before it is needed. So a slot has as many buffers
// for it as are in use at a time.
//
// How gradients travel (gradient_exchange.h). The messages of core attention come first, since
// somebody will soon wait for them. A bucket is issued behind one of these messages. The buckets
// that are complete are spread over the messages of a layer; where many are complete at once, over
// as many more as keep each one's share even. So little holds up what follows on the wire, and few
// parts are held. They are added half a layer later, without waiting where the wire keeps up.
//
// All functions are pure; any thread may call them.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distca/cost/memory_price.h"
#include "distca/plan/attention_exchange.h"
#include "distca/plan/layer_time.h"
#include "distca/program/program.h"
#include "distca/program/visit.h"

namespace distca {

enum class Overlap {
  kNone,  // one operation after another; every exchange is waited for where it stands
  /// One nano-batch at a time. Exchanges run under those tasks that need nothing from them.
  kWithin,
  /// Two nano-batches at a time. Each exchange runs under the compute of the other nano-batch. A
  /// nano-batch without a partner is played as kWithin does. Where ranks divide the matrices of
  /// layers, the two are played in counter-phase (overlap_counter_phase.cc).
  kPingPong,
};
struct OverlapName {
  std::string_view name;
  std::string_view summary;  // one line, for --print-config
  Overlap overlap;
};
inline constexpr std::array<OverlapName, 3> kOverlaps{{
    {"none", "one operation after another", Overlap::kNone},
    {"within", "exchanges under the tasks that need nothing of them", Overlap::kWithin},
    {"ping-pong", "two nano-batches: exchanges of one under the other's compute",
     Overlap::kPingPong},
}};
std::string_view overlap_name(Overlap overlap);
/// The planner's view of what exchanges run under in this mode, for steps of `nano_batches`
/// nano-batches (plan/layer_time.h).
OverlapModel overlap_model_of(Overlap overlap, int64_t nano_batches = 2);

/// The part of one nano-batch that a rank has, of the layers that share a window.
struct NanoPart {
  std::shared_ptr<const AttentionExchange> exchange;
  /// Servers do not keep Q, K, V until backward, so these are sent again (exchange.keys).
  bool redispatched = false;
};
/// The rank, the step and the overlap mode that a program is built for.
struct ProgramRequest {
  Overlap overlap = Overlap::kPingPong;
  /// A program for evaluation has only the forward pass, with the loss.
  enum class Kind { kTrain, kEvaluate } kind = Kind::kTrain;
  bool holds_weights = true;  // false for a dedicated server, which only has exchanges and tasks
  int server = 0;             // to which this rank belongs (Program::server)
  /// This rank's part of the layers' matrices. Where `stage` is given, it is that stage's.
  TensorPlace tensor = {};
  /// The parts of the step's nano-batches, in order; empty where `stage` is given. Where layers
  /// have W windows, each nano-batch has W parts: [nano-batch x W + window].
  std::vector<NanoPart> nano_batches;
  ModelShape model;  // the part of the model that this rank has: its layers, heads and features
  /// How gradients are summed. Null on a dedicated server and for evaluation. A program for
  /// training that has none ends with one kGradNorm and one kOptimizer, which belong to no bucket.
  std::shared_ptr<const GradientExchange> gradients;
  /// This rank's part of a pipeline. Without it, there is one stage with all layers of the model.
  std::optional<StagePart> stage = std::nullopt;
  /// [layer of the model] The index of its window, from 0. It is empty if all layers have the same
  /// one.
  std::vector<int> window_of_layer = {};
  /// Core attention in parts is cut into shares of so many pairs or more (plan/attention_parts.h).
  int64_t least_share_pairs = kLeastSharePairs;
};

Program build_program(const ProgramRequest& request);

}  // namespace distca
