// distca plan: how a nano-batch would be laid out and balanced, without running it; or a plan that
// was written before, checked.

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/plan_arguments.h"
#include "cli/plan_program.h"
#include "cli/plan_report.h"
#include "cli/planned.h"
#include "cli/verbs.h"
#include "distca/base/error.h"
#include "distca/base/file.h"

namespace distca::cli {
namespace {

void check_sources(const PlanArguments& arguments) {
  const int sources =
      static_cast<int>(!arguments.plan.empty()) + static_cast<int>(!arguments.workload.empty()) +
      static_cast<int>(!arguments.lengths.empty()) + static_cast<int>(!arguments.data.empty());
  if (sources != 1) {
    throw Error(ErrorKind::kUsage,
                "give one of --workload FILE, --lengths FILE, --data PREFIX, --plan FILE, not {}",
                sources);
  }
  if (arguments.program &&
      (arguments.compare || arguments.json || arguments.summary_json || !arguments.out.empty())) {
    throw Error(
        ErrorKind::kUsage,
        "--program prints operations: it takes no --compare, --json, --summary-json, --out");
  }
  if (arguments.tolerance == "auto" && (arguments.program || arguments.compare)) {
    throw Error(ErrorKind::kUsage,
                "--tolerance auto makes many plans and shows what it weighed: give {} a number",
                arguments.program ? "--program" : "--compare");
  }
  if (!arguments.compare) return;
  if (!arguments.plan.empty() || !arguments.out.empty()) {
    throw Error(ErrorKind::kUsage, "--compare makes many plans: it takes no --plan and no --out");
  }
}

void run_plan(const PlanArguments& arguments) {
  check_sources(arguments);
  if (arguments.program) return print_program_of(arguments);
  const bool as_json = arguments.json || arguments.summary_json;
  std::string note;
  Planned planned;
  Json weighed;
  if (!arguments.plan.empty()) {
    planned = read_and_check(arguments.plan, profile_by_name(arguments.profile));
  } else {
    PlanRequest request = request_from(arguments, &note);
    if (arguments.compare) {
      if (!as_json) fmt::print("{}", note);
      return print_comparison(request, as_json);
    }
    if (arguments.tolerance == "auto") {
      const ToleranceChoice choice = chosen_tolerance(arguments, request);
      request.options = choice.plan.options;
      weighed = weighed_json(choice);
    }
    planned = make_and_check(request);
  }
  if (!arguments.out.empty()) write_file_atomically(arguments.out, plan_to_json(planned.plan));
  if (arguments.summary_json) {
    Json summary = summary_json(planned);
    if (!weighed.is_null()) summary["weighed"] = weighed;
    fmt::print("{}", canonical_json(summary));
  } else if (arguments.json) {
    fmt::print("{}", plan_to_json(planned.plan));
  } else {
    fmt::print("{}", note);
    print_report(planned);
  }
}

/// What one option takes along: none of those that it would ignore.
void check_company(const PlanArguments& arguments, const std::vector<CLI::Option*>& inputs) {
  constexpr std::array<std::string_view, 4> kCompared{"--scheduler", "--layout", "--split-kv",
                                                      "--spread"};
  for (const CLI::Option* input : inputs) {
    const std::string name = input->get_name();
    if (input->count() == 0) continue;
    const bool says_more =
        name == "--profile" || (arguments.program && name == "--layers");  // than a plan
    if (!arguments.plan.empty() && !says_more) {
      throw Error(ErrorKind::kUsage, "--plan takes no {}: the plan says it", name);
    }
    if (arguments.compare && std::ranges::find(kCompared, name) != kCompared.end()) {
      throw Error(ErrorKind::kUsage, "--compare takes no {}: it shows all of them", name);
    }
  }
}

}  // namespace

void add_plan(CLI::App& app) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* verb = app.add_subcommand("plan", "How a nano-batch would be laid out and balanced");
  add_plan_options(*verb, *arguments);
  const std::vector<CLI::Option*> inputs = verb->get_options();
  verb->add_option("--plan", arguments->plan,
                   "A plan as JSON, to check; takes none of the above but --profile");
  add_program_options(*verb, *arguments);
  const std::vector<CLI::Option*> of_program{verb->get_option("--rank"),
                                             verb->get_option("--nano-batches"),
                                             verb->get_option("--redispatch")};
  verb->add_flag("--compare", arguments->compare, "All schedulers side by side");
  verb->add_flag("--json", arguments->json, "Print the plan as JSON (docs/plan_format.md)");
  verb->add_flag("--summary-json", arguments->summary_json, "Print the figures as one JSON object");
  verb->add_option("--out", arguments->out, "Write the plan as JSON to this file");
  verb->footer(
      "For a training's first nano-batch give the values of its batch.*, data.* and plan.* keys "
      "and\n"
      "its model's heads, --dtype and --window, with --tensor-parallel 1; --layers 0 as well for\n"
      "the hash of its plan, which has no memory price.\n"
      "Example:  distca plan --data data/docs --workers 4 --tokens-per-worker 65536");
  verb->callback([arguments, inputs, of_program] {
    check_company(*arguments, inputs);
    for (const CLI::Option* option : of_program) {
      if (option->count() == 0 || arguments->program) continue;
      throw Error(ErrorKind::kUsage, "{} says which program is shown: give --program, too",
                  option->get_name());
    }
    run_plan(*arguments);
  });
}

}  // namespace distca::cli
