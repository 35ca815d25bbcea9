#include "distca/train/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "distca/base/json.h"
#include "distca/base/statistics.h"
#include "distca/base/text.h"
#include "distca/batch/corpus_statistics.h"
#include "distca/plan/scheduler.h"
#include "distca/program/schedule.h"

namespace distca {
namespace {

constexpr int kBarWidth = 40;
constexpr size_t kMostServers = 16;

/// "server  2", with its role where there are several.
std::string server_name(const Config& config, size_t server, size_t num_servers, int num_workers) {
  const auto workers = static_cast<size_t>(num_workers);
  const char* role = num_servers == workers    ? ""
                     : server >= workers       ? " dedicated"
                     : config.servers.in_place ? " in place "
                                               : " worker   ";  // that serves nothing
  return fmt::format("server {:2}{}", server, role);
}

void print_loads(const Config& config, const char* title, const std::vector<int64_t>& load,
                 double imbalance, int num_workers) {
  const int64_t most = std::max<int64_t>(1, *std::max_element(load.begin(), load.end()));
  std::printf("  %s: max/mean %.3f, averaged over steps\n", title, imbalance);
  for (size_t server = 0; server < std::min(load.size(), kMostServers); ++server) {
    const double share = static_cast<double>(load[server]) / static_cast<double>(most);
    std::printf("    %s |%s| %8.1f M pairs\n",
                server_name(config, server, load.size(), num_workers).c_str(),
                bar(share, kBarWidth).c_str(), static_cast<double>(load[server]) / 1e6);
  }
  if (load.size() > kMostServers) std::printf("    ... and %zu more\n", load.size() - kMostServers);
}

void add_to(std::vector<double>& sums, const std::vector<double>& values) {
  sums.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

std::string tolerance_words(const Config::PlanKeys& plan) {
  if (plan.tolerance == Config::PlanKeys::kAutoTolerance) return "auto";
  return fmt::format("{:g}",
                     plan.tolerance < 0
                         ? static_cast<double>(find_scheduler(plan.scheduler).tolerance_ppm) * 1e-6
                         : plan.tolerance);
}

}  // namespace

AttentionClock attention_clock(const Config& config) {
  if (config.train.device == "cuda") return AttentionClock::kDevice;
  return config.train.threads_per_rank == 1 ? AttentionClock::kProcessor : AttentionClock::kElapsed;
}

std::string attention_times(const Config& config, const RunSummary& summary) {
  const AttentionClock clock = attention_clock(config);
  const std::vector<double>& measured = summary.attention_s;
  const std::vector<double>& predicted = summary.attention_predicted_s;
  std::string text = "\nTime in core attention by server, summed over steps: ";
  text += clock == AttentionClock::kProcessor ? "processor time"
          : clock == AttentionClock::kElapsed ? "elapsed, waits for a core included"
                                              : "the device's time";
  if (!predicted.empty()) {
    text += fmt::format("; predicted by the profile of {} ({})", config.attention_profile->machine,
                        config.attention_profile->path);
  } else {
    text += "; set plan.profile to have it predicted";
  }
  text += "\n";
  double longest = 0;
  for (const double seconds : measured) longest = std::max(longest, seconds);
  for (const double seconds : predicted) longest = std::max(longest, seconds);
  const auto time = [scale = longest < 1 ? 1e3 : 1, unit = longest < 1 ? "ms" : "s"](double s) {
    return fmt::format("{:9.3f} {}", s * scale, unit);
  };
  for (size_t server = 0; server < std::min(measured.size(), kMostServers); ++server) {
    text += fmt::format("    {}  measured {}",
                        server_name(config, server, measured.size(), summary.num_workers),
                        time(measured[server]));
    if (!predicted.empty()) text += "  predicted " + time(predicted[server]);
    if (!predicted.empty() && measured[server] > 0)
      text += fmt::format("  ({:+.1f} %)", 100 * (predicted[server] / measured[server] - 1));
    text += "\n";
  }
  if (measured.size() > kMostServers)
    text += fmt::format("    ... and {} more\n", measured.size() - kMostServers);
  if (!predicted.empty() && !summary.prediction_errors.empty()) {
    text +=
        fmt::format("  relative error of a server's predicted time in a step: median {:.1f} %\n",
                    100 * median(summary.prediction_errors));
  }
  return text;
}

void RunSummary::add(const std::vector<int64_t>& before, const std::vector<int64_t>& after,
                     const StepMetrics& step) {
  load_before.resize(before.size());
  load_after.resize(after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    load_before[i] += before[i];
    load_after[i] += after[i];
  }
  if (steps == 0) first_loss = step.loss;
  ++steps;
  seconds += step.step_s;
  tokens += step.tokens;
  imbalance_before += step.imbalance_before;
  imbalance_after += step.imbalance_after;
  plan_s += step.plan_s;
  plan_wait_s += step.plan_wait_s;
  add_to(attention_s, step.attention_s);
  if (step.attention_predicted_s.empty()) return;
  add_to(attention_predicted_s, step.attention_predicted_s);
  std::vector<double> errors;
  for (size_t i = 0; i < step.attention_s.size(); ++i) {
    if (step.attention_s[i] > 0)
      errors.push_back(std::abs(step.attention_predicted_s[i] / step.attention_s[i] - 1));
  }
  if (!errors.empty()) prediction_errors.push_back(median(errors));
}

void print_start(const Config& config, const IndexedDataset& data, int num_workers,
                 const std::string& kernel, const ComputePeak& peak) {
  const std::string servers = config.servers.dedicated == 0
                                  ? ""
                                  : fmt::format(", {} dedicated server{}", config.servers.dedicated,
                                                config.servers.dedicated == 1 ? "" : "s");
  std::printf(
      "%d workers%s (%s), %s parameters, %s documents, %s tokens\n", num_workers, servers.c_str(),
      config.comm.backend.c_str(), with_thousands(config.model.num_parameters()).c_str(),
      with_thousands(data.num_documents()).c_str(), with_thousands(data.num_tokens()).c_str());
  const std::string tolerance = tolerance_words(config.plan);
  const bool alone =
      schedule_of(config.train.schedule) == Schedule::kPingPong && config.batch.nano_batches == 1;
  std::printf(
      "%lld steps of %lld x %s tokens, scheduler %s, tolerance %s, schedule %s%s; attention kernel "
      "%s; peak of all ranks %.0f GFLOP/s (%s)\n",
      static_cast<long long>(config.train.steps), static_cast<long long>(config.batch.nano_batches),
      with_thousands(config.batch.nano_batch_tokens).c_str(), config.plan.scheduler.c_str(),
      tolerance.c_str(), config.train.schedule.c_str(),
      alone ? " (one nano-batch: as overlap)" : "", kernel.c_str(), peak.flops_per_s / 1e9,
      peak.of.c_str());
  std::fflush(stdout);
}

void print_summary(const Config& config, const IndexedDataset& data, const RunSummary& summary) {
  const std::string& out = config.train.output_dir;
  if (summary.steps == 0)
    std::printf("\nNo step was made: the weights saved are the initial ones\n");
  if (summary.steps > 0) {
    const StepMetrics& last = summary.last;
    std::printf(
        "\nLearned\n  loss %.3f -> %.3f nats a token over %s tokens in %.0f s (%s tokens/s)\n",
        summary.first_loss, last.loss, with_thousands(summary.tokens).c_str(), summary.seconds,
        with_thousands(static_cast<int64_t>(static_cast<double>(summary.tokens) / summary.seconds))
            .c_str());
    if (last.validation_loss)
      std::printf("  held-out loss %.3f nats a token\n", *last.validation_loss);
    if (const auto entropies = token_entropies(data)) {
      std::printf(
          "  counting single tokens would give %.3f (unigram entropy), pairs %.3f (bigram "
          "entropy)\n",
          entropies->unigram, entropies->bigram);
    }
    const double steps = static_cast<double>(summary.steps);
    std::printf("\nCore attention: (query, key) pairs of one layer by server, summed over steps\n");
    print_loads(config, "before balancing", summary.load_before, summary.imbalance_before / steps,
                summary.num_workers);
    print_loads(config, "after balancing", summary.load_after, summary.imbalance_after / steps,
                summary.num_workers);
    std::fputs(attention_times(config, summary).c_str(), stdout);
    std::printf("\nPlanning\n  %.2f ms a batch beside the steps, which waited %.2f ms for it\n",
                1e3 * summary.plan_s / steps, 1e3 * summary.plan_wait_s / steps);
  }
  std::printf("\nSaved\n  %s/model.safetensors  weights, Hugging Face names (%s parameters)\n",
              out.c_str(), with_thousands(config.model.num_parameters()).c_str());
  const Json saved = config.model.to_hugging_face(config.batch.max_document_tokens);
  std::printf("  %s/config.json        %s\n  %s/metrics.jsonl      every step\n", out.c_str(),
              saved["architectures"][0].get<std::string>().c_str(), out.c_str());
  std::printf("  %s/config.toml        what was run\n", out.c_str());
  if (!config.train.trace.empty()) {
    std::printf(
        "  %s  steps %lld to %lld: distca trace %s, or ui.perfetto.dev\n",
        config.train.trace.c_str(), static_cast<long long>(config.train.trace_first_step),
        static_cast<long long>(config.train.trace_first_step + config.train.trace_steps - 1),
        config.train.trace.c_str());
  }
  std::fflush(stdout);
}

}  // namespace distca
