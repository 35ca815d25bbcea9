#include "distca/base/random.h"

#include <bit>

#include "distca/base/error.h"

namespace distca {
namespace {

uint64_t splitmix64(uint64_t& state) {
  state += 0x9e3779b97f4a7c15ull;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

Random::Random(uint64_t seed, uint64_t stream) {
  // Mixing the stream first keeps (1, 2) and (2, 1) apart.
  uint64_t mixed = seed ^ splitmix64(stream);
  for (uint64_t& word : state_) word = splitmix64(mixed);
}

uint64_t Random::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t Random::below(uint64_t bound) {
  DISTCA_CHECK(bound > 0, "no integer lies below 0");
  // 2^64 mod bound values at the low end would be drawn once too often.
  const uint64_t rejected = (0 - bound) % bound;
  uint64_t value = next();
  while (value < rejected) value = next();
  return value % bound;
}

}  // namespace distca
