#include "bench/overlap_report.h"

#include <fmt/format.h>

#include "distca/base/build_info.h"
#include "distca/base/machine.h"
#include "distca/base/statistics.h"
#include "distca/base/text.h"

namespace distca::bench {
namespace {

std::string number(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }
std::string ms(double seconds) { return number(1e3 * seconds, 1); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// 1 / the figure: how many times as long as what it is judged by.
Estimate inverse(const Estimate& estimate) {
  return {1 / estimate.median, 1 / estimate.high, 1 / estimate.low};
}
std::string interval(const Estimate& estimate) {
  return fmt::format("{:.3f}-{:.3f}", estimate.low, estimate.high);
}

std::string head(const OverlapOptions& options) {
  namespace build = build_info;
  const LlamaConfig& model = options.model;
  return fmt::format(
      "A training step (forward and backward of two nano-batches; no sum of gradients, which "
      "would\n"
      "travel on the same wire) of two workers in network namespaces of their own, joined by a "
      "veth\n"
      "pair whose directions a token bucket limits; each worker pinned to one core, which it "
      "shares\n"
      "with Gloo's thread. Each worker computes some of the other's documents. ms: medians; a "
      "step\n"
      "from a barrier to the end of the slower worker. ideal: ping-pong with exchanges of one "
      "byte,\n"
      "plus the processor time of the exchange: what the step's exchanges, played alone, take of "
      "a\n"
      "worker's core, kernel and interrupts included (gaps in a loop of lowest priority that reads "
      "the\n"
      "clock beside them); `charged`: to the worker's threads. wire: a step's bytes at the rate "
      "measured with "
      "both\n"
      "directions busy. Ratios: median over interleaved rounds with its 95 % interval; A/A:\n"
      "ping-pong against itself in the same rounds. {} rounds, {} of what is only shown.\n"
      "machine {}; commit {}, {} build, {}, PyTorch {}\n"
      "model: {} layers, hidden {}, intermediate {}, heads {}:{}, head_dim {}, {}; {} "
      "nano-batches\n",
      options.rounds, options.shown_rounds, cpu_name(), build::kCommit, build::kBuildType,
      build::kCompiler, build::kTorch, model.num_hidden_layers, model.hidden_size,
      model.intermediate_size, model.num_attention_heads, model.num_key_value_heads, model.head_dim,
      short_name(model.dtype), kNanoBatches);
}

std::string windows_table(const OverlapFigures& figures) {
  Table table({"exchange", "pass", "alone ms", "runs under", "ms", "share", "longest beside it ms",
               "times as long"});
  for (const ExchangeWindow& window : figures.windows) {
    table.add_row({op_name(window.kind), pass_name(window.pass), ms(window.exchange_s),
                   window.under_attention ? "core_attention" : "linear work", ms(window.under_s),
                   percent(window.share()), ms(window.longest_s),
                   number(window.over_longest(), 2)});
  }
  return table.to_string();
}

std::string arms_table(const OverlapFigures& figures) {
  Table table({"step", "ms", "to ideal", "95 %", "to wire", "95 %"});
  const Rates ideal = figures.ideal_s();
  for (size_t arm = 0; arm < kArms; ++arm) {
    const Rates& steps = figures.step_s[arm];
    const Rates wire(steps.size(), figures.exchange_s());
    const Estimate to_ideal =
        estimate_ratio(steps, Rates(ideal.begin(), ideal.begin() + std::ssize(steps)));
    const Estimate to_wire = estimate_ratio(steps, wire);
    table.add_row({std::string(kArmNames[arm]), ms(median(steps)), number(to_ideal.median, 3),
                   interval(to_ideal), number(to_wire.median, 3), interval(to_wire)});
  }
  return table.to_string();
}

std::string verdict_text(const OverlapFigures& figures, const std::vector<OverlapFigures>& all) {
  const OverlapVerdict verdict = verdict_of(figures, all);
  const bool to_wire = figures.setting.length == ExchangeLength::kLonger;
  const Estimate ratio = inverse(verdict.figure.reached);
  return fmt::format(
      "ping-pong to {}: {:.3f} ({}), bar {:.2f}, A/A {}: {}\n", to_wire ? "wire" : "ideal",
      ratio.median, interval(ratio), 1 / kOverlapBar, interval(verdict.figure.control),
      verdict.why_not_judged.empty() ? std::string(verdict_name(verdict.decision()))
                                     : "not judged (" + verdict.why_not_judged + ")");
}

std::string setting_text(const OverlapFigures& figures, const std::vector<OverlapFigures>& all) {
  return fmt::format(
      "\n## {}\n{} of {} tokens swapped a worker and nano-batch; {} sent a worker and step; wire "
      "{:.1f} MB/s\n(a step's bytes: {} ms); exchanges alone {} ms, taking {} ms of the core "
      "(charged {} ms):\n{} of the step with one byte\n{}{}{}",
      figures.setting.name(), figures.batch.swapped_tokens, figures.batch.tokens(),
      human_bytes(figures.step_bytes), figures.wire_bytes_per_s / 1e6, ms(figures.exchange_s()),
      ms(median(figures.alone_s)), ms(figures.processor_s()), ms(median(figures.charged_s)),
      percent(figures.processor_share()), windows_table(figures), arms_table(figures),
      verdict_text(figures, all));
}

Json to_json(const Estimate& estimate) {
  return {{"median", estimate.median}, {"low", estimate.low}, {"high", estimate.high}};
}

Json setting_json(const OverlapFigures& figures, const std::vector<OverlapFigures>& all) {
  Json steps = Json::object();
  for (size_t arm = 0; arm < kArms; ++arm) steps[std::string(kArmNames[arm])] = figures.step_s[arm];
  Json windows = Json::array();
  for (const ExchangeWindow& window : figures.windows) {
    windows.push_back({{"exchange", op_name(window.kind)},
                       {"pass", pass_name(window.pass)},
                       {"alone_s", window.exchange_s},
                       {"under_attention", window.under_attention},
                       {"under_s", window.under_s},
                       {"longest_s", window.longest_s}});
  }
  const OverlapVerdict verdict = verdict_of(figures, all);
  return {{"setting", figures.setting.name()},
          {"swapped_tokens", figures.batch.swapped_tokens},
          {"tokens", figures.batch.tokens()},
          {"step_bytes", figures.step_bytes},
          {"wire_bytes_per_s", figures.wire_bytes_per_s},
          {"step_s", steps},
          {"alone_s", figures.alone_s},
          {"idle_shares", figures.idle_shares},
          {"used_s", figures.used_s},
          {"charged_s", figures.charged_s},
          {"exchanges", windows},
          {"reached", to_json(verdict.figure.reached)},
          {"control", to_json(verdict.figure.control)},
          {"bar", kOverlapBar},
          {"verdict", verdict_name(verdict.decision())},
          {"why_not_judged", verdict.why_not_judged}};
}

}  // namespace

Tally overlap_tally(const std::vector<OverlapFigures>& all) {
  Tally tally;
  for (const OverlapFigures& figures : all) tally.add(verdict_of(figures, all).decision());
  return tally;
}

std::string overlap_text(const OverlapOptions& options, const std::vector<OverlapFigures>& all) {
  std::string text = head(options);
  for (const OverlapFigures& figures : all) text += setting_text(figures, all);
  const Tally tally = overlap_tally(all);
  return text + fmt::format("\n{} of {} bars reached, {} missed, {} not decidable here\n",
                            tally.reached, tally.judged(), tally.missed, tally.not_decidable);
}

Json overlap_json(const OverlapOptions& options, const std::vector<OverlapFigures>& all) {
  Json settings = Json::array();
  for (const OverlapFigures& figures : all) settings.push_back(setting_json(figures, all));
  return {{"machine", cpu_name()},
          {"commit", build_info::kCommit},
          {"rounds", options.rounds},
          {"shown_rounds", options.shown_rounds},
          {"settings", settings}};
}

}  // namespace distca::bench
