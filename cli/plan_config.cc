#include "cli/plan_config.h"

#include <fmt/format.h>

#include "cli/options.h"
#include "cli/plan_pipeline.h"
#include "cli/plan_report.h"
#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/plan_figures.h"
#include "distca/forecast/plan_request.h"
#include "distca/forecast/planned_ahead.h"
#include "distca/program/overlap.h"

namespace distca::cli {
namespace {

/// "", or a line that says what the plans do not show of the run.
std::string notes(const Config& config, const std::string& data, const BatchStream& batches) {
  const int64_t tokens = config.batch.nano_batches * config.batch.nano_batch_tokens;
  int64_t present = 0;
  for (int64_t set = 0; set < batches.num_sets(); ++set) present += batches.epoch_tokens(set);
  std::string text;
  if (present < tokens) {
    text += fmt::format(
        "{} has {} tokens to train on, and a step takes {}: it has each document {:.1f} times\n",
        data, with_thousands(present), with_thousands(tokens),
        static_cast<double>(tokens) / static_cast<double>(present));
  }
  if (measures_speeds(config)) {
    text +=
        "train.deterministic is false: a run plans with the speeds that it measures, and these "
        "plans rest on none\n";
  }
  return text;
}

Json json_of(int64_t step, const BatchPlans& plans, const PlanFigures& figures,
             const Config& config) {
  Json json = {{"step", step},
               {"plan_hash", fmt::format("{:016x}", figures.hash)},
               {"tokens", figures.tokens},
               {"imbalance_before", figures.imbalance_before},
               {"imbalance_after", figures.imbalance_after},
               {"nano_batches", Json::array()}};
  const std::vector<int64_t> layers = config.model.num_layers_of_windows();
  for (size_t i = 0; i < plans.plans.size(); ++i) {
    Json plan = summary_json(checked(plans.plans[i], config.attention_profile));
    if (layers.size() > 1) plan["layers"] = layers[i % layers.size()];
    json["nano_batches"].push_back(std::move(plan));
  }
  return json;
}

void print_plans(const Config& config, const BatchPlans& plans) {
  const std::vector<int64_t> windows = config.model.windows(),
                             layers = config.model.num_layers_of_windows();
  for (size_t i = 0; i < plans.plans.size(); ++i) {
    const size_t nano = i / plans.num_windows, window = i % plans.num_windows;
    const std::string sees =
        windows[window] == 0 ? "all keys" : with_thousands(windows[window]) + " tokens";
    fmt::print("\nNano-batch {} of {}{}\n", nano + 1, plans.num_nano_batches(),
               windows.size() == 1
                   ? ""
                   : fmt::format(", {} layer{} in which a query sees {}", layers[window],
                                 layers[window] == 1 ? "" : "s", sees));
    print_report(checked(plans.plans[i], config.attention_profile));
  }
  if (plans.pipeline && plans.pipeline->ticks_plan() != nullptr) {
    fmt::print("\n");
    print_ticks(*plans.pipeline, overlap_name(config.train.overlap));
  }
}

}  // namespace

void print_plan_of_config(const ConfigToPlan& asked) {
  const Config config = load_config(asked.config, asked.overrides);
  say_notes(config.notes);
  DISTCA_THROW_IF(asked.step > config.train.steps, ErrorKind::kUsage,
                  "--step {}: the run has train.steps = {}", asked.step, config.train.steps);
  const RunGrid grid = run_grid(config, asked.workers);
  BatchStream batches = checked_batches(config, asked.lengths);
  const std::string said =
      notes(config, asked.lengths.empty() ? config.data.prefix : asked.lengths.string(), batches);
  batches.seek(asked.step - 1);
  const Batch batch = batches.next();
  if (asked.compare) {
    DISTCA_THROW_IF(grid.is_pipeline(), ErrorKind::kUsage,
                    "--compare plans a nano-batch, and a pipeline plans ticks: leave it out");
    if (!asked.as_json) fmt::print("Nano-batch 1 of step {}\n{}", asked.step, said);
    return print_comparison(plan_request(config, batch.front().nano_batch, asked.workers),
                            asked.as_json);
  }
  const BatchPlans plans = plan_later_batch(config, batch, asked.workers);
  PlanFigures figures{.hash = plans_hash(plans)};
  std::vector<RankSample> work;
  add_plan_figures(config, batch, plans, asked.workers, &figures, &work);
  if (asked.as_json)
    return fmt::print("{}", canonical_json(json_of(asked.step, plans, figures, config)));
  fmt::print(
      "Step {} of {}: {} nano-batch{} of {} tokens on {}\n"
      "plan hash {:016x}, as plan_hash in metrics.jsonl\n"
      "max/mean of core attention {:.3f} before balancing, {:.3f} after\n{}",
      asked.step, config.train.steps, config.batch.nano_batches,
      config.batch.nano_batches == 1 ? "" : "es", with_thousands(config.batch.nano_batch_tokens),
      grid.words(), figures.hash, figures.imbalance_before, figures.imbalance_after, said);
  print_plans(config, plans);
}

}  // namespace distca::cli
