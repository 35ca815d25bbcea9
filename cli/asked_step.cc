#include "cli/asked_step.h"

#include <fmt/format.h>

#include "cli/options.h"
#include "cli/plan_file.h"
#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/checked_data.h"
#include "distca/forecast/plan_request.h"
#include "distca/plan/plan_batch_input.h"

namespace distca::cli {
namespace {

/// "", or a line that says that a step has documents more than once.
std::string repetition(const Config& config, const std::string& data, const BatchStream& batches) {
  const int64_t tokens = config.batch.nano_batches * config.batch.nano_batch_tokens;
  int64_t present = 0;
  for (int64_t set = 0; set < batches.num_sets(); ++set) present += batches.epoch_tokens(set);
  if (present >= tokens) return "";
  return fmt::format(
      "{} has {} tokens to train on, and a step takes {}: it has each document {:.1f} times\n",
      data, with_thousands(present), with_thousands(tokens),
      static_cast<double>(tokens) / static_cast<double>(present));
}

/// Throws Error(kUsage) if there are more servers or bytes than can be planned.
void check_sizes_of(const Config& config, const AskedStep& step) {
  for (const NanoBatchSource& source : step.batch) {
    check_counts(source.nano_batch.num_tokens(), num_ranks(config, step.workers),
                 ErrorKind::kUsage);
    const PlanRequest request = step.request(config, source.nano_batch);
    check_sizes(request.nano_batch, request.cluster, request.shape, ErrorKind::kUsage);
  }
}

}  // namespace

std::vector<CLI::Option*> add_step_options(CLI::App& verb, StepArguments& asked) {
  CLI::Option* config = verb.add_option("--config", asked.config,
                                        "A configuration of distca train; without it, defaults")
                            ->type_name("FILE");
  verb.add_option("overrides", asked.overrides,
                  "section.key=value; replaces what the file says (distca train --print-config "
                  "explains every key)")
      ->type_name("KEY=VALUE");
  CLI::Option* lengths = verb.add_option("--lengths", asked.lengths,
                                         "JSON list of document lengths in place of data.prefix")
                             ->type_name("FILE");
  CLI::Option* workload =
      verb.add_option("--workload", asked.workload,
                      "JSON with ranks, tokens_per_rank, doc_lens: each nano-batch of step 1, in "
                      "place of data.prefix and batch.nano_batch_tokens")
          ->type_name("FILE");
  CLI::Option* workers =
      number(verb, "--workers", asked.workers, 1, kMostServers,
             "Ranks that hold weights; default: the ranks of the workload for each stage, else 1");
  CLI::Option* step =
      number(verb, "--step", asked.step, 1, int64_t{1} << 40, "Which step of the run");
  for (CLI::Option* other : {lengths, step}) workload->excludes(other);
  return {config, lengths, workload, workers, step};
}

PlanRequest AskedStep::request(const Config& config, const NanoBatch& nano_batch) const {
  return plan_request(config, nano_batch, run_grid(config, workers).grid.num_workers());
}

AskedStep asked_step(const Config& config, const StepArguments& asked) {
  DISTCA_THROW_IF(asked.step > config.train.steps, ErrorKind::kUsage,
                  "--step {}: the run has train.steps = {}", asked.step, config.train.steps);
  AskedStep step;
  if (!asked.workload.empty()) {
    const Workload workload = read_workload(asked.workload);
    // Plans need no more than lengths, so no source says where tokens are from.
    step.batch.assign(config.batch.nano_batches, {.nano_batch = workload.nano_batch});
    step.workers = workload.ranks * config.tensor_ranks() *
                   static_cast<int>(config.parallel.pipeline_model_parallel_size);
  } else {
    DISTCA_THROW_IF(
        asked.lengths.empty() && config.data.prefix.empty(), ErrorKind::kUsage,
        "no documents to plan: give data.prefix=PREFIX, --lengths FILE or --workload FILE");
    BatchStream batches = checked_batches(config, asked.lengths);
    step.notes = repetition(
        config, asked.lengths.empty() ? config.data.prefix : asked.lengths.string(), batches);
    batches.seek(asked.step - 1);
    step.batch = batches.next();
  }
  if (asked.workers > 0) step.workers = asked.workers;
  if (const int ranks = config.tensor_ranks(); ranks > 1) {
    step.notes +=
        fmt::format("a server is {} ranks: pairs, memory and bytes are those of each\n", ranks);
  }
  if (measures_speeds(config)) {
    step.notes +=
        "train.deterministic is false: a run plans with the speeds that it measures, and these "
        "plans with none that was measured\n";
  }
  check_sizes_of(config, step);
  return step;
}

}  // namespace distca::cli
