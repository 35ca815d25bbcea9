#include "bench/plan_bars.h"

namespace distca::bench {
namespace {

struct ByteBar {
  double bar;       // share of the original's bytes, at 64 servers and more
  double bar_at_8;  // at fewer
  double aim;
};
// In the order of balanced_variants(). Spread has bars of its own, and those of the plan it spreads
// are not its.
constexpr ByteBar kByteBars[] = {
    {0.88, 0.95, 0.77}, {0.73, 0.78, 0.63}, {0.62, 0.70, 0.53}, {0.56, 0.66, 0.48}};
constexpr size_t kFirstOwnLayout = 2;
constexpr size_t kSpread = 4;
constexpr double kLargestBar = 0.45;
constexpr double kLargestAim = 0.3;

struct TimeBar {
  int servers;
  double plan_ms, metadata_ms, both_ms;  // 0: no bar
  double plan_aim, metadata_aim, both_aim;
};
constexpr TimeBar kTimeBars[] = {{512, 20, 20, 0, 8, 5, 0}, {64, 0, 0, 4, 0, 0, 1}};

}  // namespace

Shares shares(const Measured& measured, const Measured& original) {
  const int64_t most = original.summary.max_send_bytes;
  return {.bytes = share(measured.bytes, original.bytes),
          .send = share(measured.summary.max_send_bytes, most),
          .receive = share(measured.summary.max_receive_bytes, most)};
}

std::vector<Verdict> judge_shares(const std::string& where, size_t variant, const std::string& name,
                                  int servers, const Shares& reached) {
  const bool many = servers >= 64;
  std::vector<Verdict> verdicts;
  if (variant < std::size(kByteBars)) {
    const ByteBar& bar = kByteBars[variant];
    verdicts.push_back(
        {where, "share of bytes", name, reached.bytes, many ? bar.bar : bar.bar_at_8, bar.aim});
  }
  if (variant == kSpread && many) {
    verdicts.push_back({where, "largest send", name, reached.send, kLargestBar, kLargestAim});
    verdicts.push_back({where, "largest receive", name, reached.receive, kLargestBar, kLargestAim});
  }
  return verdicts;
}

std::vector<Verdict> judge_plan(const std::string& where, size_t variant, const std::string& name,
                                int servers, const Measured& measured) {
  if (!measured.refusal.empty()) return {{where, "refused", name, 1, 0, 0}};
  std::vector<Verdict> verdicts{
      {where, "max/mean", name, measured.summary.max_over_mean, 1.02, 0},
      {where, "violations", name, static_cast<double>(measured.violations), 0, 0}};
  for (const TimeBar& bar : kTimeBars) {
    if (bar.servers != servers || variant < kFirstOwnLayout) continue;
    const auto add = [&](const char* figure, double reached, double most, double aim) {
      if (most > 0) verdicts.push_back({where, figure, name, reached, most, aim});
    };
    add("plan ms", measured.plan_ms, bar.plan_ms, bar.plan_aim);
    add("metadata ms", measured.metadata_ms, bar.metadata_ms, bar.metadata_aim);
    add("plan + metadata ms", measured.plan_ms + measured.metadata_ms, bar.both_ms, bar.both_aim);
  }
  return verdicts;
}

}  // namespace distca::bench
