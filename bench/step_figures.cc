#include "bench/step_figures.h"

#include <algorithm>
#include <cmath>

#include "distca/base/error.h"
#include "distca/base/statistics.h"

namespace distca::bench {
namespace {

/// The sum of value(length) over all documents.
template <typename Value>
int64_t sum_over_documents(const BatchLengths& batch, const Value& value) {
  int64_t sum = 0;
  for (const std::vector<int64_t>& nano_batch : batch) {
    for (const int64_t length : nano_batch) sum += value(length);
  }
  return sum;
}

}  // namespace

int64_t num_tokens(const BatchLengths& batch) {
  return sum_over_documents(batch, [](int64_t length) { return length; });
}

int64_t num_targets(const BatchLengths& batch) {
  return sum_over_documents(batch, [](int64_t length) { return length - 1; });
}

int64_t num_pairs(const BatchLengths& batch) {
  return sum_over_documents(batch, [](int64_t length) { return length * (length + 1) / 2; });
}

BatchLengths merged(const BatchLengths& batch) {
  BatchLengths one(1);
  for (const std::vector<int64_t>& nano_batch : batch)
    one[0].insert(one[0].end(), nano_batch.begin(), nano_batch.end());
  return one;
}

StepFigures figures_of(std::span<const PlayedStep> ranks) {
  DISTCA_CHECK(!ranks.empty(), "no ranks");
  double begin = ranks[0].begin_s, end = ranks[0].end_s, latest = ranks[0].computed_s;
  for (const PlayedStep& rank : ranks) {
    begin = std::min(begin, rank.begin_s);
    end = std::max(end, rank.end_s);
    latest = std::max(latest, rank.computed_s);
  }
  StepFigures figures{.seconds = end - begin, .gradient_norm = ranks[0].gradient_norm};
  const double rank_seconds = figures.seconds * static_cast<double>(ranks.size());
  for (const PlayedStep& rank : ranks) {
    figures.idle_share += (rank.waited_s + latest - rank.computed_s) / rank_seconds;
    figures.core_idle_share += (figures.seconds - rank.processor_s) / rank_seconds;
    figures.loss += rank.loss_sum;
  }
  return figures;
}

double same_step_bound(int64_t tokens) {
  return 2 * 4 * (10 + std::sqrt(static_cast<double>(tokens))) * 0x1p-24;
}

Rates seconds_of(const std::vector<StepFigures>& rounds) {
  Rates seconds;
  for (const StepFigures& round : rounds) seconds.push_back(round.seconds);
  return seconds;
}

size_t fastest(const std::vector<Rates>& seconds) {
  const auto slower = [](const Rates& a, const Rates& b) { return median(a) < median(b); };
  return static_cast<size_t>(std::ranges::min_element(seconds, slower) - seconds.begin());
}

std::vector<std::vector<StepFigures>> interleaved_steps(std::span<const ArmRun> arms, int rounds) {
  std::vector<std::vector<StepFigures>> figures(arms.size());
  for (int round = -1; round < rounds; ++round) {
    for (size_t turn = 0; turn < arms.size(); ++turn) {
      const size_t arm = (turn + static_cast<size_t>(round + 1)) % arms.size();
      const StepFigures step = arms[arm](round);
      if (round >= 0) figures[arm].push_back(step);
    }
  }
  return figures;
}

}  // namespace distca::bench
