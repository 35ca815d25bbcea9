// distca profile: how long core attention takes on this machine, as a profile that plans balance by
// (docs/profile_format.md), or all that a run does, as a machine on which `distca simulate`
// predicts it (docs/simulator.md).

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/profile_machine.h"
#include "cli/profile_measure.h"
#include "cli/verbs.h"
#include "distca/base/build_info.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/text.h"
#include "distca/cost/task_price.h"

namespace distca::cli {
namespace {

constexpr int64_t kMostMeasuredTokens = 1 << 20;

void check_arguments(const ProfileArguments& arguments) {
  DISTCA_THROW_IF(arguments.heads % arguments.kv_heads != 0, ErrorKind::kUsage,
                  "--heads {}: must be a multiple of --kv-heads {}", arguments.heads,
                  arguments.kv_heads);
  DISTCA_THROW_IF(arguments.head_dim % 8 != 0, ErrorKind::kUsage,
                  "--head-dim {}: must be a multiple of 8", arguments.head_dim);
  const std::string fault = kernel_fault(request_of(arguments));
  DISTCA_THROW_IF(!fault.empty(), ErrorKind::kUsage, "--kernel {} {}", arguments.kernel, fault);
  if (arguments.on_cuda()) return;
  const AttentionShape shape = shape_of(arguments);
  // Q, dO, O; K, V; the gradients of Q, K, V in up to 8 bytes; ATen's copies of all that.
  const int64_t token_bytes =
      (5 * shape.num_heads + 4 * shape.num_kv_heads) * 2 * shape.head_dim_qk * 8;
  const double bytes = static_cast<double>(token_bytes) * static_cast<double>(arguments.max_tokens);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  DISTCA_THROW_IF(bytes > memory, ErrorKind::kUsage,
                  "--max-tokens {} of this shape takes up to {}, more than this machine's {}",
                  arguments.max_tokens, human_bytes(static_cast<int64_t>(bytes)),
                  human_bytes(static_cast<int64_t>(memory)));
}

/// GFLOP/s of one pass of the task whose rate is highest; `pair_flops` of one (query, key) pair.
double best_rate(std::span<const MeasuredTask> tasks, std::vector<int64_t> MeasuredTask::*calls,
                 int64_t pair_flops) {
  double best = 0;
  for (const MeasuredTask& task : tasks) {
    const int64_t flops = pair_flops * Mask{}.pairs(task.q, task.kv);
    best = std::max(best, static_cast<double>(flops) / static_cast<double>(fastest(task.*calls)));
  }
  return best;
}

/// The limit, and how much of it the attention reaches at best.
void print_limit(const ProfileArguments& arguments, const AttentionProfile& profile,
                 std::span<const MeasuredTask> grid) {
  const AttentionShape& shape = profile.shape;
  const int64_t pair_flops = 2 * shape.num_heads * (shape.head_dim_qk + shape.head_dim_v);
  const double peak = static_cast<double>(profile.peak_mflops) / 1000;
  fmt::print("{}, {}, {} thread{}, {}, distca {}\n", profile.machine, profile.path,
             arguments.threads, arguments.threads == 1 ? "" : "s", arguments.dtype,
             build_info::kCommit);
  fmt::print(
      "limit: {:.1f} GFLOP/s of multiply-adds without memory ({}); forward reaches {:.0f} % of it, "
      "backward {:.0f} %\n",
      peak, isa_name(kernels::chosen_isa()),
      100 * best_rate(grid, &MeasuredTask::forward_ns, pair_flops) / peak,
      100 * best_rate(grid, &MeasuredTask::backward_ns, pair_flops * 5 / 2) / peak);
}

/// How well the grid predicts tasks that are not on it: tasks_to_check, measured.
void print_check(const AttentionProfile& profile, std::span<const MeasuredTask> tasks) {
  const TaskPrice price(profile.shape, &profile);
  std::vector<double> errors;
  for (const MeasuredTask& task : tasks) {
    const auto measured = static_cast<double>(fastest(task.forward_ns) + fastest(task.backward_ns));
    const auto predicted = static_cast<double>(price(task.q, task.kv));
    errors.push_back(100 * std::fabs(predicted / measured - 1));
  }
  std::sort(errors.begin(), errors.end());
  fmt::print("error: median {:.1f} %, worst {:.1f} %, predicting {} tasks as plans cut them\n",
             errors[errors.size() / 2], errors.back(), errors.size());
}

void keep(AtomicFile& file, const AttentionProfile& profile) {
  file.write(profile_to_json(profile));
  file.commit();
}

/// Prints how it compares with the machine's limit and with tasks off the grid, once it is kept.
AttentionProfile profile_on_cpu(const ProfileArguments& arguments, AtomicFile& file) {
  AttentionKernel kernel(request_of(arguments));
  at::set_num_threads(arguments.threads);
  // The tasks to predict are measured with the grid, under the same conditions.
  std::vector<MeasuredTask> tasks = grid_tasks(arguments.max_tokens);
  const size_t grid_size = tasks.size();
  for (const MeasuredTask& task : tasks_to_check(arguments.max_tokens)) tasks.push_back(task);
  fmt::print(
      "measuring {} tasks up to {} tokens with {}, forward and backward, for at most {:g} s\n",
      tasks.size(), with_thousands(arguments.max_tokens), kernel.name(), arguments.seconds);
  std::fflush(stdout);
  const double peak_before = measured_peak(arguments);
  const size_t calls = measure_rounds(arguments, kernel, tasks);
  const double peak = std::max(peak_before, measured_peak(arguments));
  if (calls < kRounds) {
    fmt::print("the time sufficed for {} call{} of each task, {} are wanted: give more --seconds\n",
               calls, calls == 1 ? "" : "s", kRounds);
  }
  const std::span<const MeasuredTask> measured(tasks);
  const AttentionProfile profile =
      to_profile(arguments, kernel.name(), peak, measured.first(grid_size));
  keep(file, profile);
  print_limit(arguments, profile, measured.first(grid_size));
  print_check(profile, measured.subspan(grid_size));
  return profile;
}

/// Options of --attention alone, which name what is measured.
std::vector<CLI::Option*> attention_options(CLI::App& verb, ProfileArguments& arguments) {
  constexpr int kMost = 1024;
  return {
      number(verb, "--heads", arguments.heads, 1, kMost, "Query heads of one rank"),
      number(verb, "--kv-heads", arguments.kv_heads, 1, kMost, "Key and value heads of one rank"),
      number(verb, "--head-dim", arguments.head_dim, 1, kMost, "Of queries, keys and values"),
      number_type(verb, "--dtype", arguments.dtype, {"bfloat16", "float32", "float64"},
                  "Computed in"),
      verb.add_option("--kernel", arguments.kernel, "As attention.kernel in training")
          ->check(CLI::IsMember(kernel_names()))
          ->capture_default_str(),
      verb.add_option("--device", arguments.device, "cpu, or cuda: the first one")
          ->check(CLI::IsMember({"cpu", "cuda"}))
          ->capture_default_str(),
      number(verb, "--max-tokens", arguments.max_tokens, 128, kMostMeasuredTokens,
             "Most queries and keys measured; beyond, plans go by pairs"),
      number(verb, "--threads", arguments.threads, 1, kMost,
             "Of one call, as train.threads_per_rank")};
}

/// Options of --machine alone.
std::vector<CLI::Option*> machine_options(CLI::App& verb, MachineArguments& machine) {
  return {verb.add_option("--config", machine.config, "With --machine: as of distca train")
              ->type_name("FILE"),
          verb.add_option("overrides", machine.overrides, "With --machine: as of distca train")
              ->type_name("KEY=VALUE"),
          number(verb, "--workers", machine.workers, 1, kMostRanks,
                 "With --machine: ranks that hold weights, all at work while it is measured")};
}

void run_attention(const CLI::App& verb, const ProfileArguments& arguments) {
  for (const char* option : {"--threads", "--seconds"}) {
    DISTCA_THROW_IF(arguments.on_cuda() && verb.count(option) > 0, ErrorKind::kUsage,
                    "{} goes with --device cpu", option);
  }
  check_arguments(arguments);
  AtomicFile file(arguments.out);  // before the minutes of measuring, not after
  const AttentionProfile profile =
      arguments.on_cuda() ? profile_on_device(arguments) : profile_on_cpu(arguments, file);
  if (arguments.on_cuda()) keep(file, profile);
  fmt::print("{}: {}\n", arguments.out.string(), profile_name(profile));
}

}  // namespace

void add_profile(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<ProfileArguments>();
  auto machine = std::make_shared<MachineArguments>();
  CLI::App* verb = app.add_subcommand("profile", "Measure this machine, for plans and predictions");
  CLI::Option* attention =
      verb->add_flag("--attention", arguments->attention,
                     "Core attention, forward and backward, over a grid of queries and keys");
  CLI::Option* of_run = verb->add_flag(
      "--machine", machine->asked,
      "All that the steps of a run do, for distca simulate --machine; needs --config");
  of_run->excludes(attention);
  const std::vector<CLI::Option*> of_attention = attention_options(*verb, *arguments);
  for (CLI::Option* option : machine_options(*verb, *machine)) option->needs(of_run);
  number(*verb, "--seconds", arguments->seconds, 0, 1e6,
         "Most time for core attention, if one call of each task takes no longer; with --machine "
         "also for steps, if four rounds of them take no longer");
  verb->add_option("--out", arguments->out, "The file (docs/profile_format.md, docs/simulator.md)")
      ->required();
  verb->footer(
      "Attention alone:  distca profile --attention --heads 4 --kv-heads 2 --head-dim 64 --out "
      "profile.json\n"
      "Example:  distca profile --machine --config configs/laptop.toml --workers 2 --out "
      "machine.json");
  verb->callback([arguments, machine, exit_code, of_attention, verb] {
    DISTCA_THROW_IF(!arguments->attention && !machine->asked, ErrorKind::kUsage,
                    "profile: say what to measure: --attention or --machine");
    if (!machine->asked) return run_attention(*verb, *arguments);
    for (const CLI::Option* option : of_attention) {
      DISTCA_THROW_IF(option->count() > 0, ErrorKind::kUsage,
                      "{} goes with --attention; --machine takes it from the configuration",
                      option->get_name());
    }
    machine->seconds = arguments->seconds;
    machine->out = arguments->out;
    *exit_code = profile_machine(*machine);
  });
}

}  // namespace distca::cli
