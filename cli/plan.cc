// distca plan: what a step of a training would do, without running it; or a plan that was written
// before, checked.

#include <memory>
#include <vector>

#include "cli/options.h"
#include "cli/plan_file.h"
#include "cli/plan_step.h"
#include "cli/verbs.h"

namespace distca::cli {

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
          ->check(whole_range(0, kMostServers - 1));
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
