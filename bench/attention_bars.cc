#include "bench/attention_bars.h"

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

}  // namespace distca::bench
