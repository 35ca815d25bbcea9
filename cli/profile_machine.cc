#include "cli/profile_machine.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/options.h"
#include "cli/profile_measure.h"
#include "cli/start_ranks.h"
#include "cli/train_request.h"
#include "distca/base/env.h"
#include "distca/base/file.h"
#include "distca/base/text.h"
#include "distca/comm/launch/rendezvous.h"
#include "distca/config/run_grid.h"
#include "distca/train/check_run.h"
#include "distca/train/measure_machine.h"

namespace distca::cli {
namespace {

/// Longer documents are priced by pairs, which is right for them.
constexpr int64_t kMostGridTokens = 8192;

/// The core attention of a rank of the run.
ProfileArguments attention_of(const MachineArguments& arguments, const Config& config) {
  const AttentionShape shape = config.rank_shape().attention;
  return {.attention = true,
          .heads = shape.num_heads,
          .kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim_qk,
          .dtype = std::string(long_name(config.model.dtype)),
          .kernel = std::string(kernel_name(config.attention.kernel)),
          .max_tokens = std::clamp<int64_t>(config.batch.max_document_tokens, 128, kMostGridTokens),
          .threads = static_cast<int>(config.train.threads_per_rank),
          .seconds = arguments.seconds};
}

/// Measured by every rank while the others measure it, too. On a device, the stated one.
std::shared_ptr<const AttentionProfile> attention_profile(const MachineArguments& arguments,
                                                          const Config& config) {
  if (config.on_cuda()) return profile_by_name("h200");
  const ProfileArguments asked = attention_of(arguments, config);
  AttentionKernel kernel(request_of(asked));
  std::vector<MeasuredTask> tasks = grid_tasks(asked.max_tokens);
  measure_rounds(asked, kernel, tasks);
  return std::make_shared<const AttentionProfile>(
      to_profile(asked, kernel.name(), measured_peak(asked), tasks));
}

void print_machine(const Machine& machine, const std::filesystem::path& file) {
  Table table({"number", "value", "from"});
  for (int i = 0; i < kNumMachineNumbers; ++i) {
    const auto number = static_cast<MachineNumber>(i);
    const Machine::Number& of = machine.numbers[static_cast<size_t>(i)];
    table.add_row({machine_number_name(number), fmt::format("{:.4g}", of.value), of.source});
  }
  Table phases({"phase", "pass", "tokens", "ns a token"});
  for (const PhaseTimes& times : machine.phases) {
    for (size_t i = 0; i < times.tokens.size(); ++i) {
      phases.add_row({times.phase, times.pass == Pass::kForward ? "forward" : "backward",
                      with_thousands(times.tokens[i]),
                      fmt::format("{:.0f}", static_cast<double>(times.ns[i]) /
                                                static_cast<double>(times.tokens[i]))});
    }
  }
  const Machine::Check& check = machine.check;
  fmt::print(
      "{}\n{}\ncheck: a step of the run is predicted at {:.4f} s and took {:.4f} s ({:+.1f} %)\n"
      "{}: {}\n",
      table.to_string(), phases.to_string(), check.predicted_s, check.measured_s,
      100 * check.error(), file.string(), machine.name);
}

/// On every rank.
void measure(const MachineArguments& arguments, const Config& config, Communicator& comm) {
  at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
  const Machine machine =
      measure_machine(config, comm, attention_profile(arguments, config), arguments.seconds);
  if (comm.rank() != 0) return;
  AtomicFile file(arguments.out);
  file.write(machine_to_json(machine));
  file.commit();
  print_machine(machine, arguments.out);
}

std::vector<std::string> rank_command(const MachineArguments& arguments) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe"), "profile",
                                      "--machine"};
  if (!arguments.config.empty()) command.insert(command.end(), {"--config", arguments.config});
  command.insert(command.end(), arguments.overrides.begin(), arguments.overrides.end());
  command.insert(command.end(), {"--seconds", fmt::format("{}", arguments.seconds), "--out",
                                 arguments.out.string()});
  return command;
}

}  // namespace

int profile_machine(const MachineArguments& arguments) {
  const Config config = load_config(arguments.config, arguments.overrides);
  const std::optional<Rendezvous> rendezvous = find_rendezvous(env_string);
  const int workers = workers_of(config, arguments.workers, rendezvous);
  const RunGrid run = run_grid(config, workers);
  prepare_device(config);
  check_means(config);
  check_launch(config, rendezvous, arguments.workers);
  if (!rendezvous || rendezvous->rank == 0) {
    const AtomicFile writable(arguments.out);  // before the minutes of measuring, not after
    if (!rendezvous) {
      say_notes(config.notes);
      fmt::print(
          "measuring core attention for at most {0:g} s, then steps of {1} rank{2} for {0:g} s, or "
          "as long as four rounds take\n",
          arguments.seconds, run.num_ranks(), run.num_ranks() == 1 ? "" : "s");
      std::fflush(stdout);
    }
  }
  set_up_process(config);
  const auto begin = [&]() -> RankWork {
    return [&](Communicator& comm) { measure(arguments, config, comm); };
  };
  return start_ranks({.config = config,
                      .workers = workers,
                      .rendezvous = rendezvous,
                      .begin = begin,
                      .command = rank_command(arguments)})
      .value_or(0);
}

}  // namespace distca::cli
