#pragma once
// A pipeline's step as all ranks agree on it: its order, the plans of its exchanges, and the part
// of each rank, from which overlap.h builds the rank's program.
//
//   const PipelineParts parts({.request = request, .layers = {{0, 4}, {4, 8}}});
//   ProgramRequest program{.stage = parts.part(rank, {.types = types, .row_bytes = row_bytes})};
//
// Any thread may call the methods.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distca/plan/exchange.h"
#include "distca/plan/pipeline/pipeline_plan.h"
#include "distca/plan/validate.h"
#include "distca/program/pipeline_order.h"

namespace distca {

/// The order in which stages play micro-batches, and the ranks that compute their core attention
/// (docs/program.md).
enum class PipelineSchedule : uint8_t {
  kAligned,  // all stages play the same pass in a tick; core attention is pooled
  kMixed,    // 1F1B in lockstep, fewer micro-batches in flight; core attention is pooled
  kAtHome,   // 1F1B; each stage computes its own core attention
};

struct PipelineScheduleName {
  std::string_view name;
  std::string_view summary;  // one line, for --print-config
  PipelineSchedule schedule;
};
inline constexpr std::array<PipelineScheduleName, 3> kPipelineSchedules{{
    {"aligned",
     "all stages play the same pass in a tick, and core attention is pooled: the fastest",
     PipelineSchedule::kAligned},
    {"mixed", "1f1b in such ticks, core attention pooled: about half the activations of aligned",
     PipelineSchedule::kMixed},
    {"1f1b", "each stage computes its own core attention", PipelineSchedule::kAtHome},
}};

std::string_view schedule_name(PipelineSchedule schedule);

struct PipelineStepRequest {
  /// For kAtHome, slots must be 1. A step that does not train plays forward ticks, which are the
  /// same for all schedules.
  PipelineRequest request;
  std::vector<Range> layers;  // [stage] Stage::layers; none is empty
  PipelineSchedule schedule = PipelineSchedule::kAligned;
  int virtual_stages = 1;  // in each stage; above 1 with kAtHome only, and no weight gradients wait
};

class PipelineParts {
 public:
  /// Makes all plans. Throws Error(kPlan) as make_plan does.
  explicit PipelineParts(PipelineStepRequest request);
  PipelineParts(const PipelineParts&) = delete;
  PipelineParts& operator=(const PipelineParts&) = delete;

  const PipelineRequest& request() const { return request_.request; }
  const Grid& grid() const { return request_.request.grid; }
  PipelineSchedule schedule() const { return request_.schedule; }
  /// [stage] Stage::layers.
  const std::vector<Range>& layers() const { return request_.layers; }
  const std::vector<Tick>& ticks() const { return ticks_; }
  const PipelineOrder& order() const { return order_; }
  const WeightGradients& weight_gradients() const { return weight_gradients_; }
  /// The plans of the ticks of kAligned; null for other schedules.
  const PipelinePlan* ticks_plan() const { return aligned_ ? &*aligned_ : nullptr; }
  /// The plan of an exchange of order(), in which this stage takes part. With kAtHome each stage
  /// has one of its own, in which its own ranks work and serve alone; else it is the same for all.
  const Plan& plan(size_t exchange, int stage = 0) const;
  /// The hash of all plans and of the order that uses them, as 16 hex digits.
  std::string hash() const;
  /// One line for each violation of the plans; nothing if they are valid.
  std::vector<std::string> violations(const ValidateOptions& options) const;

  /// The number types and row sizes of a rank's messages.
  struct Format {
    ExchangeTypes types;
    int64_t row_bytes = 0;  // bytes of a token that goes to another stage
    /// The rank's place in its server, by which it has a part of the rows.
    TensorPlace tensor = {};
  };
  /// Returns the part of a server's rank in the step: its visits, exchanges and p2p messages.
  StagePart part(int server, const Format& format) const;

 private:
  void plan_pooled();
  void plan_at_home();
  Plan plan_alone(const OrderedExchange& exchange) const;
  std::vector<int> nano_batches_of_other_pass(const OrderedExchange& exchange) const;

  PipelineStepRequest request_;
  PipelineShape shape_;
  std::vector<Tick> ticks_;
  WeightGradients weight_gradients_;
  PipelineOrder order_;
  std::optional<PipelinePlan> aligned_;
  std::vector<Plan> plans_;      // each once
  std::vector<size_t> plan_of_;  // [exchange] in plans_; kAtHome: that of stage 0, behind which
                                 // those of the other stages stand
  std::vector<std::unique_ptr<const PlanIndex>> indices_;  // [plan]
};

}  // namespace distca
