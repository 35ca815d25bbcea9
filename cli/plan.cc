// distca plan: how a nano-batch would be laid out and balanced, without running it; or a plan that
// was written before, checked.

#include <memory>
#include <string>
#include <vector>

#include "cli/plan_arguments.h"
#include "cli/plan_report.h"
#include "cli/verbs.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"

namespace distca::cli {
namespace {

/// A plan that somebody else may have written or changed.
Planned read_and_check(const std::filesystem::path& path) {
  const std::string json = read_file(path, ErrorKind::kPlan);
  Planned planned;
  ValidateOptions checks;
  try {
    planned.plan = plan_from_json(json);
    const Plan& plan = planned.plan;
    check_sizes(plan.nano_batch, plan.cluster, plan.shape, ErrorKind::kPlan);
    checks = checks_of(find_scheduler(plan.options.scheduler));
  } catch (const Error& error) {
    throw Error(ErrorKind::kPlan, "{}: {}", path.string(), error.what());
  }
  const std::vector<std::string> violations = validate(planned.plan, checks);
  if (!violations.empty()) {
    throw Error(ErrorKind::kPlan, "{}: not a valid plan: {}{}", path.string(), violations.front(),
                violations.size() > 1 ? " (and more)" : "");
  }
  planned.metadata_seconds = metadata_seconds(planned.plan);
  return planned;
}

void check_sources(const PlanArguments& arguments) {
  const int sources =
      static_cast<int>(!arguments.plan.empty()) + static_cast<int>(!arguments.workload.empty()) +
      static_cast<int>(!arguments.lengths.empty()) + static_cast<int>(!arguments.data.empty());
  if (sources != 1) {
    throw Error(ErrorKind::kUsage,
                "give one of --workload FILE, --lengths FILE, --data PREFIX, --plan FILE, not {}",
                sources);
  }
  if (!arguments.compare) return;
  if (!arguments.plan.empty() || !arguments.out.empty()) {
    throw Error(ErrorKind::kUsage, "--compare makes many plans: it takes no --plan and no --out");
  }
}

void run_plan(const PlanArguments& arguments) {
  check_sources(arguments);
  if (arguments.compare) {
    print_comparison(request_from(arguments), arguments.json || arguments.summary_json);
    return;
  }
  PlanRequest request;
  const bool from_file = !arguments.plan.empty();
  if (!from_file) request = request_from(arguments);
  const Planned planned = from_file ? read_and_check(arguments.plan) : make_and_check(request);
  if (!arguments.out.empty()) write_file_atomically(arguments.out, plan_to_json(planned.plan));
  if (arguments.summary_json) {
    print_summary_json(planned);
  } else if (arguments.json) {
    fmt::print("{}", plan_to_json(planned.plan));
  } else {
    print_report(planned, from_file ? nullptr : &request);
  }
}

}  // namespace

void add_plan(CLI::App& app) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* verb = app.add_subcommand("plan", "How a nano-batch would be laid out and balanced");
  add_plan_options(*verb, *arguments);
  const std::vector<CLI::Option*> inputs = verb->get_options();
  verb->add_option("--plan", arguments->plan, "A plan as JSON, to check; takes none of the above");
  verb->add_flag("--compare", arguments->compare, "All schedulers side by side");
  verb->add_flag("--json", arguments->json, "Print the plan as JSON (docs/plan_format.md)");
  verb->add_flag("--summary-json", arguments->summary_json, "Print the figures as one JSON object");
  verb->add_option("--out", arguments->out, "Write the plan as JSON to this file");
  verb->footer(
      "For a training's first nano-batch give the values of its batch.* and data.* keys, and its\n"
      "model's heads and --dtype with --tensor-parallel 1.\n"
      "Example:  distca plan --data data/docs --workers 4 --tokens-per-worker 65536");
  verb->callback([arguments, inputs] {
    for (const CLI::Option* input : inputs) {
      if (arguments->plan.empty() || input->count() == 0) continue;
      throw Error(ErrorKind::kUsage, "--plan takes no {}: the plan says it", input->get_name());
    }
    run_plan(*arguments);
  });
}

}  // namespace distca::cli
