#include "distca/train/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "distca/base/text.h"
#include "distca/batch/corpus_statistics.h"

namespace distca {
namespace {

constexpr int kBarWidth = 40;
constexpr size_t kMostServers = 16;

void print_loads(const char* title, const std::vector<int64_t>& load, double imbalance) {
  const int64_t most = std::max<int64_t>(1, *std::max_element(load.begin(), load.end()));
  std::printf("  %s: max/mean %.3f, averaged over steps\n", title, imbalance);
  for (size_t server = 0; server < std::min(load.size(), kMostServers); ++server) {
    const double share = static_cast<double>(load[server]) / static_cast<double>(most);
    std::printf("    server %2zu |%s| %8.1f M pairs\n", server, bar(share, kBarWidth).c_str(),
                static_cast<double>(load[server]) / 1e6);
  }
  if (load.size() > kMostServers) std::printf("    ... and %zu more\n", load.size() - kMostServers);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void add_to(std::vector<double>& sums, const std::vector<double>& values) {
  sums.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

void print_attention_times(const RunSummary& summary) {
  const std::vector<double>& measured = summary.attention_s;
  const std::vector<double>& predicted = summary.attention_predicted_s;
  std::printf("\nTime in core attention by server, summed over steps%s\n",
              predicted.empty() ? " (plan.profile would predict it)" : "");
  for (size_t server = 0; server < std::min(measured.size(), kMostServers); ++server) {
    std::printf("    server %2zu  measured %9.3f s", server, measured[server]);
    if (!predicted.empty()) {
      std::printf("  predicted %9.3f s  (%+.1f %%)", predicted[server],
                  100 * (predicted[server] / measured[server] - 1));
    }
    std::printf("\n");
  }
  if (measured.size() > kMostServers)
    std::printf("    ... and %zu more\n", measured.size() - kMostServers);
  if (!summary.prediction_errors.empty()) {
    std::printf("  relative error of a server's predicted time in a step: median %.1f %%\n",
                100 * median(summary.prediction_errors));
  }
}

}  // namespace

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
                 double peak_flops_per_s) {
  std::printf("%d workers (%s), %s parameters, %s documents, %s tokens\n", num_workers,
              config.comm.backend.c_str(), with_thousands(config.model.num_parameters()).c_str(),
              with_thousands(data.num_documents()).c_str(),
              with_thousands(data.num_tokens()).c_str());
  std::printf(
      "%lld steps of %lld x %s tokens, scheduler %s, tolerance %g; matmul peak of all workers %.0f "
      "GFLOP/s (%s)\n",
      static_cast<long long>(config.train.steps), static_cast<long long>(config.batch.nano_batches),
      with_thousands(config.batch.nano_batch_tokens).c_str(), config.plan.scheduler.c_str(),
      config.plan.tolerance, peak_flops_per_s / 1e9, config.model_dtype.c_str());
  std::fflush(stdout);
}

void print_summary(const Config& config, const IndexedDataset& data, const RunSummary& summary) {
  const std::string& out = config.train.output_dir;
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
    print_loads("before balancing", summary.load_before, summary.imbalance_before / steps);
    print_loads("after balancing", summary.load_after, summary.imbalance_after / steps);
    print_attention_times(summary);
    std::printf("\nPlanning\n  %.2f ms a batch beside the steps, which waited %.2f ms for it\n",
                1e3 * summary.plan_s / steps, 1e3 * summary.plan_wait_s / steps);
  }
  std::printf("\nSaved\n  %s/model.safetensors  weights, Hugging Face names (%s parameters)\n",
              out.c_str(), with_thousands(config.model.num_parameters()).c_str());
  std::printf("  %s/config.json        LlamaForCausalLM\n  %s/metrics.jsonl      every step\n",
              out.c_str(), out.c_str());
  std::printf("  %s/config.toml        what was run\n", out.c_str());
  std::fflush(stdout);
}

}  // namespace distca
