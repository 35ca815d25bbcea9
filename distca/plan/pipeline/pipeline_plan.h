#pragma once
// The plans of a step whose layers are divided over the stages of a pipeline. Core attention of all
// that is in flight in a tick (ticks.h) is pooled: it has one plan for each slot, over the workers
// of all stages and the dedicated servers. So stages that have no micro-batch compute attention for
// the others (paper 4.1, figure 8).
//
//   PipelineRequest request{.grid = {.stages = 2, .replicas = 4}, .nano_batches = nano_batches};
//   for (const NanoBatch& nano_batch : nano_batches)  // as one stage alone would lay it out
//     request.homes.push_back(make_layout({nano_batch, Cluster::in_place(4), {}, {}}));
//   request.speeds = speeds;
//   const PipelinePlan plan = make_pipeline_plan(request);
//
// A nano-batch has one layout, in all ticks and on all stages. The plan of a slot has the documents
// of the stages' nano-batches end to end, in the order of the stages, and their layouts side by
// side; workers of a stage without one hold nothing. Its tasks are those of the scheduler.
//
// The types are plain values. Any thread may call the functions. Every rank makes the same plans
// from the same request.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/cost/memory_price.h"
#include "distca/cost/speeds.h"
#include "distca/plan/pipeline/ticks.h"
#include "distca/plan/pipeline/weight_gradients.h"
#include "distca/plan/plan.h"

namespace distca {

/// How fill and drain ticks are planned: slots in which a stage has no nano-batch. There the ranks
/// that hold tokens send much more than in other ticks, since idle stages compute most of their
/// attention.
enum class FillTicks : uint8_t {
  kExact,   // with the options of all other ticks, so that O has the bits of every other plan
  kSpread,  // with PlanOptions::spread, if the scheduler knows it
};
struct FillTicksName {
  std::string_view name;
  std::string_view summary;  // one line, for --print-config
  FillTicks fill_ticks;
};
inline constexpr std::array<FillTicksName, 2> kFillTicks{{
    {"exact", "as all other ticks: the same bits of the loss", FillTicks::kExact},
    {"spread", "with spread: the lowest largest send, and long planning", FillTicks::kSpread},
}};

/// Time of a stage's embedding, head and loss, for each token at home, by the pass in which it is
/// spent: where a step trains, the loss does its backward in forward ticks.
struct EmbeddingHeadTime {
  int64_t forward_ps_per_token = 0;
  int64_t backward_ps_per_token = 0;
  bool operator==(const EmbeddingHeadTime&) const = default;
};

/// A request for the plans of a step.
struct PipelineRequest {
  Grid grid;
  int slots = 2;       // nano-batches of a micro-batch: 2 under ping-pong, otherwise 1
  bool trains = true;  // false if there are forward ticks alone
  std::vector<NanoBatch> nano_batches;  // nano-batches of the step, at least one
  /// [nano-batches] Over grid.replicas workers: what make_layout gives for one stage alone. It must
  /// not depend on the number of stages, so that the bits of the loss do not either.
  std::vector<Layout> homes;
  AttentionShape shape;
  PlanOptions options;
  /// A fill tick may last longer than its least length by as much as a server may exceed its share
  /// in other ticks, unless it is weighed.
  FillTicks fill_ticks = FillTicks::kExact;
  /// The bandwidth of one rank's sends, by which fill ticks are weighed: where the exchanges of a
  /// slot would make its tick longer (SlotTime), stages at work keep more, as long as the tick gets
  /// shorter by it. 0 means unknown: then exchanges take no time, and ticks are weighed only where
  /// weight gradients may wait.
  int64_t bytes_per_us = 0;
  int64_t layer_steps = 1;                               // per tick: layers of the largest stage
  std::shared_ptr<const AttentionProfile> profile = {};  // predicts load, as in PlanRequest

  /// kWhole under ping-pong, otherwise kAttention.
  BalanceTarget balance_target = BalanceTarget::kWhole;
  /// [ranks] Speeds over all layers of the rank's own stage, forward and backward together. A
  /// stage's tick has as many layer steps as the largest stage has layers; attention_ps_per_kload
  /// is that of all these steps. Empty if unknown, which counts as all ranks alike.
  std::vector<RankSpeed> speeds;
  std::vector<EmbeddingHeadTime> ends;  // [stages]; empty if they take no time
  /// Multiply-adds of a token in a layer's matrix products, and in those that backward computes
  /// again (cost/stage_layers.h). Only their ratio matters.
  int64_t products = 1, products_again = 0;
  /// How many micro-batches may wait for their weight gradients at a time (weight_gradients.h).
  /// Where any may, a tolerance that nobody has given is half of the scheduler's.
  int outstanding_weight_gradients = 0;
  /// If false, workers serve only if there is no other server.
  bool in_place = true;
  std::vector<int64_t> capacity;  // [ranks], for all ticks; empty if they are to be chosen
  /// Links, memory price and caps. Workers and capacities are the plans' own.
  Cluster cluster;
  /// How many threads make_pipeline_plan and PipelineParts may use. Any number makes the same
  /// plans.
  int threads = 1;
};

struct PipelinePlan {
  Grid grid;
  int slots = 1;
  bool trains = true;
  std::vector<NanoBatch> nano_batches;
  std::vector<Layout> homes;  // [nano-batches], over grid.replicas workers
  std::vector<Tick> ticks;
  std::vector<Plan> plans;  // each once, in the order of their first use
  /// [ticks][slots] An index of `plans`, or -1 if no stage has a nano-batch there. Two ticks name
  /// the same plan only if every stage has the same nano-batch in both. With one stage, forward and
  /// backward of a nano-batch name the same plan, so servers may keep its keys.
  std::vector<std::vector<int>> plan_of_slot;
  int outstanding_weight_gradients = 0;  // the request's
  WeightGradients weight_gradients;

  int num_micro_batches() const;
  /// Returns the nano-batch in this slot of a micro-batch, or -1 if there is none or micro_batch is
  /// -1.
  int nano_batch(int micro_batch, int slot) const;
  /// [stages] Each stage's nano-batch in this slot of a tick.
  std::vector<int> nano_batches_of(int tick, int slot) const;
  /// [stages] Empty if nothing is left.
  std::span<const StageWeights> weights_of(int tick, int slot) const;
  bool operator==(const PipelinePlan&) const = default;
};

/// Makes the plans of all ticks in the phase-aligned order.
/// Capacities are those of even_capacities for the work of the tick's pass in the slot: a rank has
/// linear work for the tokens of its stage's nano-batch, none if it has no nano-batch. Forward is a
/// third of linear work (with full recomputation a quarter) and 2/7 of core attention. With one
/// stage both passes count together, so that they share a plan.
/// In fill ticks, every server may have as much load as it finishes within the tick's least length
/// (cost/finish_time.h) and the tolerance. So where linear work decides how long the tick takes,
/// idle servers need not be even, and few rows travel. The tolerance of such a plan is that of its
/// load, and may be large. (With unknown speeds or given capacities, it is that of all ticks.)
/// With more than one stage, `balanced` improves a plan the fewer times the more segments it has.
/// Throws Error(kPlan) as make_plan does. A request whose lists have the wrong lengths is a CHECK.
PipelinePlan make_pipeline_plan(const PipelineRequest& request);

/// The work of ranks in the slot of a tick that is not of one pass of its nano-batches.
struct OtherWork {
  std::span<const StageWeights> weights = {};  // [stages]; empty if they leave and play none
  std::span<const StageWeights> partner_weights = {};  // likewise, in the tick's other slot
  /// [stages] The nano-batches of stages that play the other pass (-1: none), with their core
  /// attention; empty if all stages play the same pass.
  std::span<const int> nano_batches = {};
};

/// The plan of one slot of a tick. `nano_batches` [stages] says which nano-batch each stage has
/// there (-1: none); at least one has one. make_pipeline_plan makes all plans so.
Plan make_slot_plan(const PipelineRequest& request, std::span<const int> nano_batches, Pass pass,
                    const OtherWork& other_work = {});

/// [ranks] The work of a slot in all layer steps of a pass, or of both passes if none is named.
/// `nano_batches` [stages] says which nano-batch each stage has there (-1: none). All workers of a
/// stage count with the mean number of tokens. Gradients by
/// matrices take as long as forward.
std::vector<RankWork> slot_work(const PipelineRequest& request, std::span<const int> nano_batches,
                                std::optional<Pass> pass, const OtherWork& other_work = {});

/// The core attention of the nano-batches of stages that play the other pass, as a load of
/// this pass that takes as long. 0 for an empty list.
int64_t load_of_other_pass(const PipelineRequest& request, Pass pass,
                           std::span<const int> nano_batches);

/// The load of core attention of these nano-batches [stages] (-1: none) in one layer.
int64_t slot_load(const PipelineRequest& request, std::span<const int> nano_batches);

}  // namespace distca
