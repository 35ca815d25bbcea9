// distca plan: what a step of a training would do, without running it; or a plan that was written
// before, checked.

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/asked_step.h"
#include "cli/options.h"
#include "cli/plan_file.h"
#include "cli/plan_report.h"
#include "cli/verbs.h"
#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/text.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/plan_figures.h"
#include "distca/forecast/plan_request.h"
#include "distca/plan/choose_tolerance.h"
#include "distca/program/overlap.h"
#include "distca/program/validate/validate.h"

namespace distca::cli {
namespace {

struct PlanArguments : StepArguments {
  std::filesystem::path plan;  // a file to be shown instead of a step. Empty means not given.
  std::filesystem::path out;   // where the plans go. Empty means nowhere.
  std::optional<int> program;  // the rank whose program is printed instead of plans
  bool compare = false, json = false, summary_json = false;
};

/// The plans that plan.tolerance = auto weighed for a nano-batch.
Json weighed_of(const Config& config, const NanoBatch& nano_batch, const AskedStep& step,
                bool redispatched) {
  const PlanRequest request = step.request(config, nano_batch);
  return weighed_json(choose_tolerance(
      request, layer_time_options(config, request.cluster.num_workers, {}, redispatched)));
}

Json figures_json(const Config& config, const AskedStep& step, const BatchPlans& plans,
                  const PlanFigures& figures) {
  Json list = Json::array();
  const std::vector<int64_t> layers = config.model.num_layers_of_windows();
  for (size_t i = 0; i < plans.plans.size(); ++i) {
    Json plan = summary_json({plans.plans[i], config.attention_profile});
    if (layers.size() > 1) plan["layers"] = layers[i % layers.size()];
    if (config.plan.tolerance.is_auto)
      plan["weighed"] = weighed_of(config, step.batch[i].nano_batch, step, plans.redispatched);
    list.push_back(std::move(plan));
  }
  return {{"plan_hash", fmt::format("{:016x}", figures.hash)},
          {"plan_us", std::llround(figures.plan_s * 1e6)},
          {"tokens", figures.tokens},
          {"imbalance_before", figures.imbalance_before},
          {"imbalance_after", figures.imbalance_after},
          {"nano_batches", std::move(list)}};
}

/// How long rank 0 takes to check its own program, as each rank does in every step of a run.
int64_t microseconds_to_validate(const Config& config, const AskedStep& step,
                                 const BatchPlans& plans) {
  const Program program =
      BatchPrograms(config, plans, ProgramRequest::Kind::kTrain, step.workers).of(/*rank=*/0);
  const Stopwatch watch;
  const std::vector<std::string> violations = validate(program);
  DISTCA_CHECK(violations.empty(), "our own program is invalid: {}", violations.front());
  return std::llround(watch.seconds() * 1e6);
}

void print_tables(const Config& config, const BatchPlans& plans) {
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
    print_report({plans.plans[i], config.attention_profile});
  }
  if (plans.pipeline && plans.pipeline->ticks_plan() != nullptr) {
    fmt::print("\n");
    print_ticks(*plans.pipeline, overlap_name(config.train.overlap));
  }
}

void print_for_people(const Config& config, const PlanArguments& asked, const AskedStep& step,
                      const BatchPlans& plans, const PlanFigures& figures) {
  fmt::print(
      "Step {} of {}: {} nano-batch{} of {} tokens on {}\n"
      "plan hash {:016x}, as plan_hash in metrics.jsonl\n"
      "max/mean of core attention {:.3f} before balancing, {:.3f} after\n{}",
      asked.step, config.train.steps, step.batch.size(), step.batch.size() == 1 ? "" : "es",
      with_thousands(step.batch.front().nano_batch.num_tokens()),
      run_grid(config, step.workers).describe(), figures.hash, figures.imbalance_before,
      figures.imbalance_after, step.notes);
  print_tables(config, plans);
}

/// Prints the plans of a step, as the step of this number of `distca train` with the same words
/// makes them, and their hash, which is plan_hash of its metrics.jsonl. Prints all schedulers or a
/// rank's program instead, if those are asked for. Throws Error as the training does, and
/// Error(kUsage) for what cannot be shown.
void print_step(const PlanArguments& asked) {
  const Config config = load_config(asked.config, asked.overrides);
  say_notes(config.notes);
  const AskedStep step = asked_step(config, asked);
  const bool is_pipeline = run_grid(config, step.workers).is_pipeline();
  DISTCA_THROW_IF(is_pipeline && ((asked.json && !asked.compare) || !asked.out.empty()),
                  ErrorKind::kUsage,
                  "--json and --out are about plans of nano-batches, and a pipeline plans ticks: "
                  "leave them out");
  if (asked.compare) {
    const bool as_json = asked.json || asked.summary_json;
    if (is_pipeline) {
      if (!as_json) fmt::print("Step {}\n{}", asked.step, step.notes);
      return print_orders(compare_orders(config, step.batch, step.workers), as_json);
    }
    if (!as_json) {
      fmt::print("Nano-batch 1 of step {}{}\n{}", asked.step,
                 config.model.windows().size() > 1 ? ", layers of the first window alone" : "",
                 step.notes);
    }
    return print_comparison(step.request(config, step.batch.front().nano_batch), as_json);
  }
  const Stopwatch watch;
  const auto plan = asked.step == 1 ? plan_nano_batches : plan_later_batch;
  const BatchPlans plans = plan(config, step.batch, step.workers, {}, /*trains=*/true, 1);
  PlanFigures figures{.plan_s = watch.seconds()};
  check_plans(config, plans);
  if (asked.program) return print_program_of(config, plans, step.workers, *asked.program);
  add_plan_figures(config, step.batch, plans, step.workers, &figures);
  if (!asked.out.empty()) write_file_atomically(asked.out, plans_to_json(plans.plans));
  if (asked.json) return fmt::print("{}", plans_to_json(plans.plans));
  if (!asked.summary_json) return print_for_people(config, asked, step, plans, figures);
  Json json = figures_json(config, step, plans, figures);
  json["step"] = asked.step;
  json["validate_us"] = microseconds_to_validate(config, step, plans);
  fmt::print("{}", canonical_json(json));
}

/// Checks the plans of a file and prints them. Throws Error(kPlan) if they are not valid.
void print_plan_file(const PlanArguments& asked) {
  for (const std::string& word : asked.overrides) {
    DISTCA_THROW_IF(!word.starts_with("plan.profile="), ErrorKind::kUsage,
                    "--plan takes no {}: the plan says it", word);
  }
  const auto profile = load_config({}, asked.overrides).attention_profile;
  const std::vector<Plan> plans = read_and_check(asked.plan, profile);
  if (!asked.out.empty()) write_file_atomically(asked.out, plans_to_json(plans));
  if (asked.json) return fmt::print("{}", plans_to_json(plans));
  Json list = Json::array();
  for (size_t i = 0; i < plans.size(); ++i) {
    list.push_back(summary_json({plans[i], profile}));
    if (asked.summary_json) continue;
    if (plans.size() > 1) fmt::print("{}Plan {} of {}\n", i > 0 ? "\n" : "", i + 1, plans.size());
    print_report({plans[i], profile});
  }
  if (asked.summary_json) fmt::print("{}", canonical_json({{"nano_batches", std::move(list)}}));
}

}  // namespace

void add_plan(CLI::App& app) {
  auto asked = std::make_shared<PlanArguments>();
  CLI::App* verb =
      app.add_subcommand("plan", "How a step of a training would be laid out and balanced");
  const std::vector<CLI::Option*> of_step = add_step_options(*verb, *asked);
  CLI::Option* plan = verb->add_option("--plan", asked->plan,
                                       "A file that --out wrote, to check and to show; takes no "
                                       "key but plan.profile, with which times are checked, too")
                          ->type_name("FILE");
  CLI::Option* compare =
      verb->add_flag("--compare", asked->compare,
                     "All schedulers, on the step's first nano-batch; all orders of a pipeline");
  CLI::Option* program =
      verb->add_option("--program", asked->program,
                       "The operations of this rank's step (docs/program.md), once those of all "
                       "ranks are found valid")
          ->type_name("RANK")
          ->check(in_range(0, kMostServers - 1));
  CLI::Option* json =
      verb->add_flag("--json", asked->json, "Print the plans as JSON (docs/plan_format.md)");
  CLI::Option* summary =
      verb->add_flag("--summary-json", asked->summary_json, "Print figures as one JSON object");
  CLI::Option* out = verb->add_option("--out", asked->out, "Write what --json prints to this file")
                         ->type_name("FILE");
  for (CLI::Option* other : of_step) plan->excludes(other);
  for (CLI::Option* other : {compare, program}) plan->excludes(other);
  for (CLI::Option* other : {compare, json, summary, out}) program->excludes(other);
  compare->excludes(out);
  json->excludes(summary);
  verb->footer(
      "With --config and KEY=VALUE as for distca train, it shows the plans of that run.\n"
      "Example:  distca plan --lengths lengths.json --workers 8 batch.nano_batch_tokens=131072");
  verb->callback([asked] {
    if (asked->plan.empty()) return print_step(*asked);
    print_plan_file(*asked);
  });
}

}  // namespace distca::cli
