#include "bench/overlap_figures.h"

#include <fmt/format.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/base/statistics.h"

namespace distca::bench {
namespace {

/// Why a setting is not what its bar is for; empty if it is.
std::string why_not_judged(const OverlapFigures& figures, const std::vector<OverlapFigures>& all) {
  if (!figures.setting.judged) return "shown only";
  const auto of_rate = std::ranges::find_if(all, [&](const OverlapFigures& other) {
    return other.setting.mb_per_s == figures.setting.mb_per_s &&
           other.setting.length == ExchangeLength::kShorter;
  });
  const double processor = (of_rate == all.end() ? figures : *of_rate).processor_share();
  if (processor >= kMostProcessorShare) {
    return fmt::format(
        "the processor time of exchanges is {:.1f} % of compute at this rate, not below {:.0f} %",
        100 * processor, 100 * kMostProcessorShare);
  }
  for (const ExchangeWindow& window : figures.windows) {
    const bool fits = figures.setting.length == ExchangeLength::kShorter
                          ? window.share() <= kShorterShare
                          : window.over_longest() > 1;
    if (fits) continue;
    return fmt::format(
        "{} {} takes {:.1f} ms beside {:.1f} ms", pass_name(window.pass), op_name(window.kind),
        1e3 * window.exchange_s,
        1e3 * (figures.setting.length == ExchangeLength::kShorter ? window.under_s
                                                                  : window.longest_s));
  }
  return "";
}

}  // namespace

std::string OverlapSetting::name() const {
  const char* lengths[] = {"shorter", "between", "longer"};
  return fmt::format("{} {}", mb_per_s == 0 ? "unlimited" : fmt::format("{:g} MB/s", mb_per_s),
                     lengths[static_cast<int>(length)]);
}

std::vector<OverlapSetting> overlap_settings(const std::vector<double>& rates,
                                             const std::vector<double>& fast) {
  DISTCA_CHECK(!rates.empty(), "no rates");
  std::vector<OverlapSetting> settings;
  for (const ExchangeLength length : {ExchangeLength::kShorter, ExchangeLength::kLonger}) {
    for (const double rate : rates) settings.push_back({rate, length, true});
  }
  settings.push_back({rates[0], ExchangeLength::kBetween, false});
  for (const double rate : fast) settings.push_back({rate, ExchangeLength::kShorter, false});
  return settings;
}

double OverlapFigures::processor_s() const {
  return median(used_s) - median(idle_shares) * median(alone_s);
}

double OverlapFigures::processor_share() const {
  return processor_s() / median(step_s[kOneByteArm]);
}

Rates OverlapFigures::ideal_s() const {
  Rates ideal = step_s[kOneByteArm];
  for (double& seconds : ideal) seconds += processor_s();
  return ideal;
}

double OverlapFigures::exchange_s() const {
  return static_cast<double>(step_bytes) / wire_bytes_per_s;
}

Rates OverlapFigures::reached(Arm ping_pong) const {
  if (setting.length != ExchangeLength::kLonger) return quotient(ideal_s(), step_s[ping_pong]);
  return quotient(Rates(step_s[ping_pong].size(), exchange_s()), step_s[ping_pong]);
}

OverlapVerdict verdict_of(const OverlapFigures& figures, const std::vector<OverlapFigures>& all) {
  OverlapVerdict verdict{.why_not_judged = why_not_judged(figures, all)};
  verdict.figure = figure_of(figures.reached(kPingPongArm), figures.reached(kAgainArm),
                             verdict.why_not_judged.empty() ? kOverlapBar : 0);
  return verdict;
}

}  // namespace distca::bench
