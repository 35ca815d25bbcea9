#pragma once
// Checks the plans of a pipeline's step. The validator shares no code with the planner: it asks
// only what must hold of any order of ticks, and counts rows and plans again from the nano-batches
// and their layouts.
//
//   for (const std::string& violation : validate(plan)) fmt::print("{}\n", violation);
//
// Any thread may call the function.

#include <span>
#include <string>
#include <vector>

#include "distca/plan/pipeline/pipeline_plan.h"
#include "distca/plan/validate.h"

namespace distca {

/// Returns one line for each violation, and nothing for a valid plan. Checks that
///  - each stage has each micro-batch in exactly one forward tick and, where the step trains,
///    in one backward tick, and no other;
///  - forward of a micro-batch comes to a stage in a later tick than to the stage before, backward
///    in a later one than to the stage behind, and backward after forward;
///  - a stage holds at most min(M, 2 (P - 1 - stage) + 1) of M micro-batches at a time, as in the
///    phase-aligned order of P stages;
///  - the weight gradients that a stage leaves are played once, in a later tick, and a slot has
///  left
///    those of at most as many nano-batches at a time as the plan says;
///  - a slot has a plan exactly if a stage has a nano-batch there. The plan has the documents of
///    these nano-batches in the order of the stages, on the workers of these stages in the layouts
///    `homes`, and no other row anywhere, on as many workers and servers as the grid has;
///  - a layout's workers hold equally many tokens to within 128;
///  - each plan is used, and is itself valid (plan/validate.h).
/// The options hold for each plan and, in even_tokens and max_violations, for the whole. Whether
/// tokens are even is checked within the stages, since idle stages hold none.
std::vector<std::string> validate(const PipelinePlan& plan, const ValidateOptions& options = {});

/// Returns the violations of weight gradients alone, for ticks in any order (slots: of a
/// micro-batch; nano_batches: of the step; outstanding: how many of a slot may be left at a time).
struct WeightGradientBounds {
  int slots = 1, nano_batches = 0, outstanding = 0;
};
std::vector<std::string> weight_gradient_violations(std::span<const Tick> ticks,
                                                    const WeightGradients& weights,
                                                    const WeightGradientBounds& bounds);

}  // namespace distca
