#include "bench/rounds.h"

#include <algorithm>
#include <cmath>

#include "distca/base/error.h"
#include "distca/base/random.h"
#include "distca/base/statistics.h"

namespace distca::bench {
namespace {

constexpr int kResamples = 2000;
constexpr double kTail = 0.025;

}  // namespace

std::vector<Rates> interleaved_rates(const std::vector<Contender>& contenders, int rounds,
                                     double least_seconds) {
  std::vector<Rates> rates(contenders.size());
  std::vector<int> calls;
  for (const Contender& contender : contenders) {
    double first = contender.seconds();
    if (first < least_seconds) first = contender.seconds();  // its own caches warm
    const double fill = std::ceil(least_seconds / std::max(first, 1e-9));
    calls.push_back(static_cast<int>(std::clamp(fill, 1.0, 1e6)));
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t turn = 0; turn < contenders.size(); ++turn) {
      const size_t at = (turn + static_cast<size_t>(round)) % contenders.size();
      double seconds = 0;
      if (calls[at] > 1) contenders[at].seconds();  // after another's data in the caches
      for (int call = 0; call < calls[at]; ++call) seconds += contenders[at].seconds();
      rates[at].push_back(contenders[at].flops * calls[at] / seconds / 1e9);
    }
  }
  return rates;
}

Estimate estimate(const Rates& values) {
  DISTCA_CHECK(!values.empty(), "no rounds");
  Random random(values.size());
  std::vector<double> medians(kResamples);
  Rates sample(values.size());
  for (double& of_sample : medians) {
    for (double& value : sample) value = values[random.below(values.size())];
    of_sample = median(sample);
  }
  std::sort(medians.begin(), medians.end());
  const auto at = [&](double share) {
    return medians[static_cast<size_t>(share * (kResamples - 1))];
  };
  return {median(values), at(kTail), at(1 - kTail)};
}

Estimate estimate_ratio(const Rates& numerator, const Rates& denominator) {
  return estimate(quotient(numerator, denominator));
}

Rates quotient(const Rates& left, const Rates& right) {
  DISTCA_CHECK_EQ(left.size(), right.size());
  Rates result(left);
  for (size_t i = 0; i < result.size(); ++i) result[i] /= right[i];
  return result;
}

}  // namespace distca::bench
