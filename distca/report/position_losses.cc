#include "distca/report/position_losses.h"

#include <algorithm>
#include <bit>

namespace distca {
namespace {

/// The end of a band: 4^5 for the first one, then 4^6, and so on.
int64_t end_of(int band) { return int64_t{1} << (10 + 2 * band); }

int band_of(int64_t position) {
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(position)));
  return std::max(0, (bits - 9) / 2);
}

}  // namespace

void PositionLosses::add(double sum, std::span<const double> losses,
                         std::span<const int64_t> targets, std::span<const int64_t> positions) {
  values_[0] += sum;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (targets[i] < 0) continue;
    const int band = std::min(band_of(positions[i]), kBands - 1);
    values_[1 + band] += losses[i];
    values_[1 + kBands + band] += 1;
  }
}

PositionLosses& PositionLosses::operator+=(const PositionLosses& other) {
  for (size_t i = 0; i < values_.size(); ++i) values_[i] += other.values_[i];
  return *this;
}

std::optional<double> PositionLosses::mean() const {
  double targets = 0;
  for (int band = 0; band < kBands; ++band) targets += values_[1 + kBands + band];
  if (targets == 0) return {};
  return values_[0] / targets;
}

std::vector<PositionBand> PositionLosses::bands() const {
  std::vector<PositionBand> bands;
  for (int band = 0; band < kBands; ++band) {
    const auto targets = static_cast<int64_t>(values_[1 + kBands + band]);
    if (targets == 0) continue;
    bands.push_back({.begin = band == 0 ? 0 : end_of(band - 1),
                     .end = end_of(band),
                     .loss_sum = values_[1 + band],
                     .targets = targets});
  }
  return bands;
}

}  // namespace distca
