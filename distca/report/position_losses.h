#pragma once
// The loss by the position of a token in its document: whether a model learns to use a long
// context. Positions lie in bands, which begin at 0, 1024, 4096, 16384 and so on. A position is
// counted from where the document of the nano-batch begins, so it is how many tokens came before.
//
//     PositionLosses losses;                      // of a rank
//     losses += step.evaluate(input).losses;      // of its nano-batches
//     ordered_sum(comm, losses.values(), "losses");  // of all ranks
//     losses.bands()[0].loss();                   // mean of the first 1024 positions
//
// These are plain values without shared state.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace distca {

/// The targets of one band.
struct PositionBand {
  int64_t begin = 0, end = 0;  // positions, the end not included
  double loss_sum = 0;         // nats
  int64_t targets = 0;

  double loss() const { return loss_sum / static_cast<double>(targets); }
};

/// Sums of losses over some targets.
class PositionLosses {
 public:
  /// `sum` is the whole sum over the targets, as it is made without bands: its bits are kept.
  /// [T] `losses` are those of each token, `targets` below 0 where there is none, and `positions`.
  void add(double sum, std::span<const double> losses, std::span<const int64_t> targets,
           std::span<const int64_t> positions);
  PositionLosses& operator+=(const PositionLosses& other);

  std::optional<double> mean() const;  // nats per target; none without targets
  /// The bands that have targets.
  std::vector<PositionBand> bands() const;
  /// All of it as numbers, which may be added up.
  std::span<double> values() { return values_; }

 private:
  static constexpr int kBands = 12;  // the last one begins at 4^15
  /// The whole sum; then the sum of each band; then how many targets each has.
  std::array<double, 1 + 2 * kBands> values_{};
};

}  // namespace distca
