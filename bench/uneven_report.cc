#include "bench/uneven_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "distca/base/build_info.h"
#include "distca/base/json.h"
#include "distca/base/machine.h"
#include "distca/base/statistics.h"
#include "distca/base/text.h"

namespace distca::bench {
namespace {

constexpr double kMachines = 2, kMachinesLeft = 1.5;

std::string range(const Estimate& estimate) {
  return fmt::format("{:.3f} .. {:.3f}", estimate.low, estimate.high);
}

const char* throttle_name(const UnevenReport& report) {
  return report.cgroup ? "a control group's quota" : "a busy process on its core";
}

std::vector<const Split*> all_splits(const UnevenReport& report) {
  std::vector<const Split*> splits = {&report.undisturbed, &report.even_again};
  for (const Split& split : report.fixed) splits.push_back(&split);
  splits.push_back(&report.reweighted);
  splits.push_back(&report.reweighted_again);
  return splits;
}

void print_speeds(const char* what, const Speeds& speeds) {
  for (size_t rank = 0; rank < speeds.ranks.size(); ++rank) {
    fmt::print("measured speed {}, rank {}: {} ps a token of linear work, {} ps a thousand pairs\n",
               what, rank, with_thousands(speeds.ranks[rank].linear_ps_per_token),
               with_thousands(speeds.ranks[rank].attention_ps_per_kload));
  }
}

/// How many times as long each worker's core attention takes as when nothing slows any.
void print_slow_downs(const UnevenReport& report) {
  const auto& slow = report.speeds.ranks;
  const auto& usual = report.undisturbed_speeds.ranks;
  for (size_t rank = 0; rank < std::min(slow.size(), usual.size()); ++rank) {
    fmt::print("a pair takes rank {} {:.2f} times as long as undisturbed\n", rank,
               static_cast<double>(slow[rank].attention_ps_per_kload) /
                   static_cast<double>(usual[rank].attention_ps_per_kload));
  }
}

void print_ratio(const char* what, const Rates& numerator, const Rates& denominator) {
  const Estimate ratio = estimate_ratio(numerator, denominator);
  fmt::print("{}: {:.3f} ({})\n", what, ratio.median, range(ratio));
}

}  // namespace

Figure judged(const UnevenReport& report) {
  return reweighted_figure(report.reweighted, report.reweighted_again, best_of(report.fixed));
}

void print_table(const UnevenReport& report) {
  const Split& best = best_of(report.fixed);
  const Rates ideal = ideal_seconds(report.undisturbed.seconds, kMachines, kMachinesLeft);
  fmt::print(
      "{}, distca {}\n2 workers, a core each, overlap {}; the second one at half speed by {}; {} "
      "rounds, medians with 95 % intervals\n\n",
      cpu_name(), build_info::kCommit, report.overlap, throttle_name(report),
      report.even.seconds.size());
  Table table({"split of core attention", "fast worker's share", "it waits", "slow one waits",
               "not given of its core", "step ms", "/ best fixed", "95 % interval", "/ ideal",
               "95 % interval"});
  for (const Split* split : all_splits(report)) {
    const Estimate of_best = estimate_ratio(split->seconds, best.seconds);
    const Estimate of_ideal = estimate_ratio(split->seconds, ideal);
    table.add_row({split->name, fmt::format("{:.3f}", median(split->fast_share)),
                   fmt::format("{:.3f}", median(split->fast_waits)),
                   fmt::format("{:.3f}", median(split->slow_waits)),
                   fmt::format("{:.3f}", median(split->taken_share)),
                   fmt::format("{:.1f}", 1e3 * median(split->seconds)),
                   fmt::format("{:.3f}", of_best.median), range(of_best),
                   fmt::format("{:.3f}", of_ideal.median), range(of_ideal)});
  }
  fmt::print("{}\nideal: the undisturbed step's work on {} of {} machines, {:.1f} ms\n",
             table.to_string(), kMachinesLeft, kMachines, 1e3 * median(ideal));
  print_speeds("undisturbed", report.undisturbed_speeds);
  print_speeds("re-weighted", report.speeds);
  print_slow_downs(report);
  fmt::print("predicted for half the undisturbed speed: fast worker's share {:.3f}\n",
             report.share_by_half_speed);
  print_ratio("before / after re-weighting", report.even.seconds, report.reweighted.seconds);
  print_ratio("even against itself", report.even.seconds, report.even_again.seconds);
  print_ratio("re-weighted against itself", report.reweighted.seconds,
              report.reweighted_again.seconds);
  const Figure figure = judged(report);
  fmt::print("best fixed split ({}) / re-weighted: {:.3f} ({}), bar {:.3f}, control {}: {}\n",
             best.name, figure.reached.median, range(figure.reached), figure.bar,
             range(figure.control), verdict_name(figure.verdict()));
}

void print_json(const UnevenReport& report) {
  Json splits = Json::array();
  for (const Split* split : all_splits(report)) {
    splits.push_back({{"name", split->name},
                      {"seconds", split->seconds},
                      {"fast_share", split->fast_share},
                      {"fast_waits", split->fast_waits},
                      {"slow_waits", split->slow_waits},
                      {"taken_share", split->taken_share}});
  }
  const Figure figure = judged(report);
  const Json all = {{"machine", cpu_name()},
                    {"commit", build_info::kCommit},
                    {"overlap", report.overlap},
                    {"throttle", throttle_name(report)},
                    {"splits", splits},
                    {"best_fixed", best_of(report.fixed).name},
                    {"share_by_half_speed", report.share_by_half_speed},
                    {"verdict", verdict_name(figure.verdict())}};
  fmt::print("{}\n", all.dump());
}

}  // namespace distca::bench
