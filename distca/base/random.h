#pragma once
// A small generator (xoshiro256**, seeded by splitmix64) with integers and shuffles of our own:
// those of the standard library differ between libraries, and batches must not. One thread per
// object.

#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace distca {

class Random {
 public:
  /// Different streams of one seed are independent, e.g. (seed, epoch).
  explicit Random(uint64_t seed, uint64_t stream = 0);

  uint64_t next();
  /// Uniform in [0, bound), without modulo bias; bound > 0.
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1), multiples of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// Fisher-Yates.
  template <typename T>
  void shuffle(std::span<T> items) {
    for (size_t left = items.size(); left > 1; --left) {
      std::swap(items[left - 1], items[below(left)]);
    }
  }

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace distca
