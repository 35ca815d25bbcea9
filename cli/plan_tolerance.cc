#include "cli/plan_tolerance.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/plan_bars.h"
#include "distca/base/text.h"
#include "distca/program/overlap.h"

namespace distca::cli {
namespace {

std::string milliseconds(int64_t ps) {
  return fmt::format("{:.3f}", static_cast<double>(ps) * 1e-9);
}

}  // namespace

ToleranceChoice chosen_tolerance(const PlanArguments& arguments, const PlanRequest& request) {
  const int64_t hidden =
      arguments.hidden_size > 0 ? arguments.hidden_size : arguments.heads * arguments.head_dim;
  const int64_t intermediate =
      arguments.intermediate_size > 0 ? arguments.intermediate_size : hidden * 7 / 2;
  const ModelShape layers{.num_layers = std::max<int64_t>(1, arguments.layers),
                          .hidden_size = hidden,
                          .intermediate_size = intermediate / arguments.tensor_parallel,
                          .attention = request.shape};
  LayerTimeOptions options;
  options.speeds = stated_speeds(layers, request.cluster.num_servers(), request.profile.get());
  options.hiding = hiding_of(overlap_of(arguments.overlap));
  options.layers = layers.num_layers;
  return choose_tolerance(request, options);
}

std::string weighed_table(const ToleranceChoice& choice, const std::string& overlap,
                          double seconds) {
  Table table({"scheduler", "layout", "tolerance", "max/mean", "MiB", "ms", "exposed ms", ""});
  for (size_t i = 0; i < choice.weighed.size(); ++i) {
    const WeighedPlan& plan = choice.weighed[i];
    const bool home = plan.scheduler == "local";
    table.add_row({plan.scheduler, plan.layout,
                   home ? "-" : fmt::format("{:g}", static_cast<double>(plan.tolerance_ppm) * 1e-6),
                   fmt::format("{:.3f}", plan.max_over_share), mebibytes(plan.time.bytes),
                   milliseconds(plan.time.total_ps), milliseconds(plan.time.exposed_ps),
                   i == choice.chosen ? "chosen" : ""});
  }
  return fmt::format(
      "weighed: a layer, forward and backward, under {}; bytes of all ranks; within {} per mille "
      "the fewest bytes; weighed in {:.1f} ms\n{}",
      overlap, kTiePermille, seconds * 1e3, table.to_string());
}

}  // namespace distca::cli
