#include "distca/report/run_summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "distca/base/json.h"
#include "distca/base/statistics.h"
#include "distca/base/text.h"
#include "distca/checkpoint/folder.h"
#include "distca/forecast/memory_cap.h"
#include "distca/plan/pipeline/weight_gradients.h"
#include "distca/plan/scheduler.h"
#include "distca/program/overlap.h"

namespace distca {
namespace {

constexpr int kBarWidth = 40;
constexpr size_t kMostServers = 16;
constexpr size_t kColumns = 100;

/// A line for each server, with its role where there are several, and what `line` says of it.
template <typename Line>
std::string server_lines(const Config& config, int num_workers, size_t servers, const Line& line) {
  std::string text;
  const auto workers = static_cast<size_t>(num_workers);
  for (size_t server = 0; server < std::min(servers, kMostServers); ++server) {
    const char* role = servers == workers        ? ""
                       : server >= workers       ? " dedicated"
                       : config.servers.in_place ? " in place "
                                                 : " worker   ";  // that serves nothing
    text += fmt::format("    server {:2}{} {}\n", server, role, line(server));
  }
  if (servers > kMostServers) text += fmt::format("    ... and {} more\n", servers - kMostServers);
  return text;
}

std::string loads_text(const Config& config, const char* title, const std::vector<int64_t>& load,
                       double imbalance, int num_workers) {
  const auto most = static_cast<double>(std::max<int64_t>(1, std::ranges::max(load)));
  return fmt::format("  {}: max/mean {:.3f}, averaged over steps\n", title, imbalance) +
         server_lines(config, num_workers, load.size(), [&](size_t server) {
           const auto pairs = static_cast<double>(load[server]);
           return fmt::format("|{}| {:8.1f} M pairs", bar(pairs / most, kBarWidth), pairs / 1e6);
         });
}

template <typename T>
void add_to(std::vector<T>& sums, const std::vector<T>& values) {
  sums.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

/// [ranks] -> [servers], of each its slowest rank.
std::vector<double> slowest_of_servers(const std::vector<double>& ranks, int ranks_of_server) {
  std::vector<double> servers(ranks.size() / ranks_of_server);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    double& server = servers[rank / ranks_of_server];
    server = std::max(server, ranks[rank]);
  }
  return servers;
}

std::string describe_tolerance(const Config& config, const RunGrid& run) {
  const Config::PlanKeys& plan = config.plan;
  if (plan.tolerance.is_auto) return "auto";
  int64_t own = find_scheduler(plan.scheduler).tolerance_ppm;
  if (run.is_pipeline() && config.parallel.outstanding_weight_gradients > 0 &&
      config.parallel.pipeline_schedule != PipelineSchedule::kAtHome)
    own = tolerance_where_weights_wait(own);
  return fmt::format("{:g}", plan.tolerance.share.value_or(static_cast<double>(own) * 1e-6));
}

std::string memory_text(const Config& config, const std::vector<MemoryUse>& ranks) {
  if (ranks.empty()) return "";
  const auto most = std::ranges::max_element(ranks, {}, &MemoryUse::peak_bytes);
  const auto rank = most - ranks.begin();
  return fmt::format(
      "\nMemory\n  tensors of {}: {} at most; process of rank {}: {} in RAM at most\n",
      config.on_cuda() ? "all ranks, on the device" : fmt::format("rank {}", rank),
      human_bytes(most->peak_bytes), rank, human_bytes(most->resident_bytes));
}

std::string validation_text(const StepMetrics& last) {
  if (!last.validation_loss) return "";
  return fmt::format("  validation loss {:.3f} nats a token\n", *last.validation_loss);
}

/// The part of the summary on losses, loads, planning and memory.
std::string learned_text(const Config& config, const DataBlend& data, const RunSummary& summary) {
  const StepMetrics &last = summary.last, &sum = summary.sum;
  const double tokens_per_s = static_cast<double>(sum.plan.tokens) / sum.step_s;
  std::string text = fmt::format(
      "\nLearned{}{}\n  {} over {} tokens in {:.0f} s ({} tokens/s)\n",
      summary.goes_on_after > 0 ? fmt::format(" since step {}", summary.goes_on_after) : "",
      summary.last_step < config.train.steps
          ? fmt::format(" up to step {} of {}", summary.last_step, config.train.steps)
          : "",
      summary.first_loss ? fmt::format("loss {:.3f} -> {:.3f} nats a token", *summary.first_loss,
                                       *summary.last_loss)
                         : "no loss: no batch had a next token to learn,",
      with_thousands(sum.plan.tokens), sum.step_s,
      with_thousands(static_cast<int64_t>(tokens_per_s)));
  text += validation_text(last);
  // Counted for a single data set only: in a blend, sets that are shown more often would have to
  // count more often.
  const auto entropies = data.num_sets() == 1 ? token_entropies(data.set(0)) : std::nullopt;
  if (entropies) text += fmt::format("  {}\n", wrap(describe_counting(*entropies), kColumns - 2));
  const double steps = static_cast<double>(summary.steps);
  text += fmt::format("\nCore attention: (query, key) pairs of {} by server, summed over steps\n",
                      config.parallel.pipeline_model_parallel_size > 1 ? "all layers"
                      : config.model.windows_differ()                  ? "a layer, on average"
                                                                       : "one layer");
  text += loads_text(config, "before balancing", sum.plan.load_before,
                     sum.plan.imbalance_before / steps, summary.num_workers);
  text += loads_text(config, "after balancing", sum.plan.load_after,
                     sum.plan.imbalance_after / steps, summary.num_workers);
  text += attention_times(config, summary);
  text += balance_text(summary);
  text += fmt::format(
      "\nPlanning\n  {:.2f} ms a batch beside the steps, which waited {:.2f} ms for it\n",
      1e3 * sum.plan.plan_s / steps, 1e3 * sum.plan.plan_wait_s / steps);
  return text + memory_text(config, last.memory);
}

}  // namespace

std::string describe_counting(const Entropies& entropies) {
  std::string text = fmt::format(
      "counting single tokens of all the data would give {:.3f} "
      "(unigram entropy)",
      entropies.unigram);
  if (entropies.bigram) text += fmt::format(", pairs {:.3f} (bigram entropy)", *entropies.bigram);
  return text + ", on the very text counted";
}

std::string attention_times(const Config& config, const RunSummary& summary) {
  const std::vector<double>& measured = summary.sum.attention_s;
  const std::vector<double>& predicted = summary.sum.plan.attention_predicted_s;
  std::string text = "\nTime in core attention by server, summed over steps: ";
  text += config.on_cuda()                    ? "the device's time"
          : config.attention_has_one_thread() ? "processor time"
                                              : "elapsed, waits for a core included";
  if (!predicted.empty()) {
    text += fmt::format("; predicted by the profile of {} ({})", config.attention_profile->machine,
                        config.attention_profile->path);
  } else {
    text += "\n  (set plan.profile to have it predicted)";
  }
  text += "\n";
  double longest = 0;
  for (const double seconds : measured) longest = std::max(longest, seconds);
  for (const double seconds : predicted) longest = std::max(longest, seconds);
  const auto time = [scale = longest < 1 ? 1e3 : 1, unit = longest < 1 ? "ms" : "s"](double s) {
    return fmt::format("{:9.3f} {}", s * scale, unit);
  };
  text += server_lines(config, summary.num_workers, measured.size(), [&](size_t server) {
    std::string line = " measured " + time(measured[server]);
    if (predicted.empty()) return line;
    line += "  predicted " + time(predicted[server]);
    if (measured[server] == 0) return line;
    return line + fmt::format("  ({:+.1f} %)", 100 * (predicted[server] / measured[server] - 1));
  });
  if (!predicted.empty() && !summary.prediction_errors.empty()) {
    text +=
        fmt::format("  relative error of a server's predicted time in a step: median {:.1f} %\n",
                    100 * median(summary.prediction_errors));
  }
  return text;
}

std::string balance_text(const RunSummary& summary) {
  const std::vector<double>& waited = summary.waited_s;
  if (waited.size() < 2) return "";
  const auto percent = [&](double seconds) { return 100 * seconds / summary.sum.step_s; };
  const auto most = std::ranges::max_element(waited);
  const double all = std::accumulate(waited.begin(), waited.end(), 0.0);
  return fmt::format(
      "\nBalance\n  ranks waited {:.1f} % of the time for messages or for the last rank (rank {} "
      "most, {:.1f} %)\n",
      percent(all / static_cast<double>(waited.size())), most - waited.begin(), percent(*most));
}

void RunSummary::add(const StepMetrics& step) {
  const PlanFigures& plan = step.plan;
  if (!first_loss) first_loss = step.loss;
  if (step.loss) last_loss = step.loss;
  ++steps;
  last = step;
  sum.step_s += step.step_s;
  sum.plan.tokens += plan.tokens;
  add_to(sum.plan.load_before, plan.load_before);
  add_to(sum.plan.load_after, plan.load_after);
  sum.plan.imbalance_before += plan.imbalance_before;
  sum.plan.imbalance_after += plan.imbalance_after;
  sum.plan.plan_s += plan.plan_s;
  sum.plan.plan_wait_s += plan.plan_wait_s;
  const std::vector<double> attention_s = slowest_of_servers(step.attention_s, ranks_of_server);
  add_to(sum.attention_s, attention_s);
  add_to(waited_s, seconds_waited(step.ranks));
  if (plan.attention_predicted_s.empty()) return;
  add_to(sum.plan.attention_predicted_s, plan.attention_predicted_s);
  std::vector<double> errors;
  for (size_t i = 0; i < attention_s.size(); ++i) {
    if (attention_s[i] > 0)
      errors.push_back(std::abs(plan.attention_predicted_s[i] / attention_s[i] - 1));
  }
  if (!errors.empty()) prediction_errors.push_back(median(errors));
}

std::vector<std::string> device_lines(const Config& config, const ComputePeak& peak) {
  std::vector<std::string> lines;
  if (peak.deterministic_times > 0)
    lines.push_back(
        fmt::format("deterministic attention (train.deterministic): its backward takes "
                    "{:.2f} times as long as without",
                    peak.deterministic_times));
  if (config.device_cap_bytes > 0)
    lines.push_back(fmt::format(
        "the smallest of the ranks' devices leaves {} for activations and kept keys of a rank "
        "(plan.max_memory_gib sets another cap)",
        describe_device_cap(config.device_cap_bytes)));
  return lines;
}

std::string start_text(const Config& config, const std::string& data, const RunGrid& run,
                       const std::string& kernel, const ComputePeak& peak) {
  const std::string servers = run.describe_dedicated();
  const std::string model = fmt::format(
      "{}{}{} ({}), {} parameters", run.describe(), servers.empty() ? "" : ", ", servers,
      backend_name(config.comm.backend), with_thousands(config.model.num_parameters()));
  const bool alone = config.train.overlap == Overlap::kPingPong && config.batch.nano_batches == 1;
  const std::string schedule =
      run.is_pipeline() ? fmt::format(", pipeline schedule {} with {} outstanding weight gradients",
                                      schedule_name(config.parallel.pipeline_schedule),
                                      config.parallel.outstanding_weight_gradients)
                        : "";
  const bool some_hold_none = config.batch.nano_batch_tokens < run.grid.replicas;
  const std::string steps = fmt::format(
      "{} of {} x {} tokens{}, scheduler {}, tolerance {}, overlap {}{}{}",
      counted(config.train.steps, "step"), config.batch.nano_batches,
      with_thousands(config.batch.nano_batch_tokens),
      some_hold_none ? " (fewer than workers: some hold none)" : "", config.plan.scheduler,
      describe_tolerance(config, run), overlap_name(config.train.overlap),
      alone ? " (one nano-batch: as within)" : "", schedule);
  const std::string machine =
      fmt::format("attention kernel {}, peak of all ranks {:.0f} GFLOP/s ({})", kernel,
                  peak.flops_per_s / 1e9, peak.of);
  std::string text = fmt::format("{}\n{}\n{}\n{}", wrap(model, kColumns), wrap(data, kColumns),
                                 wrap(steps, kColumns), wrap(machine, kColumns));
  for (const std::string& line : device_lines(config, peak))
    text += fmt::format("\n{}", wrap(line, kColumns));
  return text;
}

std::string steps_written(int64_t steps, int64_t missing) {
  if (steps == 0) return "empty";
  if (missing == 0) return "every step";
  return fmt::format("{} of {} steps: {} could not be written", with_thousands(steps - missing),
                     with_thousands(steps), with_thousands(missing));
}

std::string summary_text(const Config& config, const DataBlend& data, const RunSummary& summary) {
  const std::string& out = config.train.output_dir;
  std::string text =
      summary.steps > 0 ? learned_text(config, data, summary)
      : summary.goes_on_after > 0
          ? fmt::format("\nNothing was left to train: all {} steps were done\n",
                        summary.goes_on_after)
          : fmt::format("\nNothing was trained (train.steps = 0): the weights are {}\n",
                        config.model_from.empty() ? "the initial, random ones"
                                                  : "those of " + config.model_from);
  if (summary.steps == 0) text += validation_text(summary.last);
  const Json saved = config.model.to_hugging_face(config.batch.max_document_tokens);
  text += fmt::format(
      "\nSaved\n"
      "  {0}/model.safetensors  weights, Hugging Face names ({1} parameters)\n"
      "  {0}/config.json        {3}\n"
      "  {0}/metrics.jsonl      {2}\n"
      "  {0}/config.toml        what was run",
      out, with_thousands(config.model.num_parameters()),
      steps_written(summary.last_step, summary.metrics_missing),
      saved["architectures"][0].get<std::string>());
  if (const std::string other = config.model.read_otherwise(); !other.empty())
    text += "\n  " + other;
  if (const auto checkpoints = complete_checkpoints(out); !checkpoints.empty()) {
    text += fmt::format("\n  {0}/checkpoints        to go on from, the last one of step {1}", out,
                        checkpoints.back().step);
  }
  if (!summary.trace.empty()) text += "\n  " + summary.trace;
  return text;
}

}  // namespace distca
