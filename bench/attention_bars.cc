#include "bench/attention_bars.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace distca::bench {
namespace {

using kernels::Isa;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct PeakBar {
  ScalarType type;
  Isa isa;
  int64_t shortest, longest;
  double share;
};
constexpr PeakBar kPeakBars[] = {
    {ScalarType::kFloat32, Isa::kAvx512, 2048, kNoLimit, 0.80},
    {ScalarType::kFloat32, Isa::kAvx512, 512, 512, 0.72},
    {ScalarType::kBFloat16, Isa::kAvx512Bf16, 2048, kNoLimit, 0.75},
    {ScalarType::kBFloat16, Isa::kAvx512Bf16, 512, 512, 0.70},
    {ScalarType::kFloat32, Isa::kAvx2, 512, kNoLimit, 0.75},
};

constexpr int64_t kTorchShortest = 512;
constexpr double kTorchBar = 1;
constexpr double kTorchBarAvx512 = 2;

struct ShardBar {
  Pass pass;
  int64_t queries, group;
  double share;
};
constexpr ShardBar kShardBars[] = {{Pass::kForward, 128, 4, 0.95},
                                   {Pass::kForward, 128, 1, 0.85},
                                   {Pass::kBackward, 128, 4, 0.88},
                                   {Pass::kBackward, 128, 1, 0.78}};

}  // namespace

double peak_bar(ScalarType type, Isa isa, int64_t length) {
  for (const PeakBar& bar : kPeakBars) {
    if (bar.type == type && bar.isa == isa && bar.shortest <= length && length <= bar.longest)
      return bar.share;
  }
  return 0;
}

double torch_bar(ScalarType type, int64_t length, const TorchMachine& machine) {
  if (length < kTorchShortest) return 0;
  if (type == ScalarType::kBFloat16 && machine.amx) return 0;
  return machine.avx512 ? kTorchBarAvx512 : kTorchBar;
}

double shard_bar(Pass pass, int64_t queries, int64_t group) {
  for (const ShardBar& bar : kShardBars) {
    if (bar.pass == pass && bar.queries == queries && bar.group == group) return bar.share;
  }
  return 0;
}

std::string_view verdict_name(Decision verdict) {
  switch (verdict) {
    case Decision::kShown:
      return "";
    case Decision::kReached:
      return "reached";
    case Decision::kMissed:
      return "missed";
    case Decision::kNotDecidable:
      break;
  }
  return "not decidable here";
}

Decision Figure::verdict() const {
  if (bar == 0) return Decision::kShown;
  if (rounds < kLeastRounds) return Decision::kNotDecidable;
  if (reached.low <= bar && bar <= reached.high) return Decision::kNotDecidable;
  const double margin = std::fabs(reached.median / bar - 1);
  const double noise = std::max(std::fabs(control.low - 1), std::fabs(control.high - 1));
  if (noise > margin) return Decision::kNotDecidable;
  return reached.median >= bar ? Decision::kReached : Decision::kMissed;
}

Figure figure_of(const Rates& values, const Rates& again, double bar) {
  return {.reached = estimate(values),
          .control = estimate_ratio(values, again),
          .bar = bar,
          .rounds = static_cast<int>(values.size())};
}

void Tally::add(Decision verdict) {
  reached += verdict == Decision::kReached ? 1 : 0;
  missed += verdict == Decision::kMissed ? 1 : 0;
  not_decidable += verdict == Decision::kNotDecidable ? 1 : 0;
}

}  // namespace distca::bench
