#pragma once
// A small random generator (xoshiro256**, seeded by splitmix64). It makes its own integers and
// shuffles, because those of the standard library differ between libraries, and a batch must be the
// same everywhere. Thread rule: one thread at a time uses an object.
//
//     Random random(seed, epoch);
//     random.shuffle(std::span(documents));

#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace distca {

class Random {
 public:
  /// Different streams of one seed are independent. A stream may be an epoch, for example.
  explicit Random(uint64_t seed, uint64_t stream = 0);

  /// 64 random bits.
  uint64_t next();
  /// A uniform integer in [0, bound), without modulo bias. `bound` must be above 0.
  uint64_t below(uint64_t bound);
  /// A uniform number in [0, 1): a multiple of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// Puts the items in a random order (Fisher-Yates).
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
