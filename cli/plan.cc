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
  CLI::Option* config = verb->add_option("--config", asked->config,
                                         "A configuration of distca train; without it, defaults")
                            ->type_name("FILE");
  verb->add_option("overrides", asked->overrides,
                   "section.key=value; replaces what the file says (distca train --print-config "
                   "explains every key)")
      ->type_name("KEY=VALUE");
  CLI::Option* lengths = verb->add_option("--lengths", asked->lengths,
                                          "JSON list of document lengths in place of data.prefix")
                             ->type_name("FILE");
  CLI::Option* workload =
      verb->add_option("--workload", asked->workload,
                       "JSON with ranks, tokens_per_rank, doc_lens: each nano-batch of step 1, in "
                       "place of data.prefix and batch.nano_batch_tokens")
          ->type_name("FILE");
  CLI::Option* plan = verb->add_option("--plan", asked->plan,
                                       "A file that --out wrote, to check and to show; takes no "
                                       "key but plan.profile, with which times are checked, too")
                          ->type_name("FILE");
  CLI::Option* workers =
      number(*verb, "--workers", asked->workers, 1, kMostServers,
             "Ranks that hold weights; default: the ranks of the workload for each stage, else 1");
  CLI::Option* step =
      number(*verb, "--step", asked->step, 1, int64_t{1} << 40, "Which step of the run");
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
  for (CLI::Option* other : {config, lengths, workload, workers, step, compare, program})
    plan->excludes(other);
  for (CLI::Option* other : {lengths, step}) workload->excludes(other);
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
