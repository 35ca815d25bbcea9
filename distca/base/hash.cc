#include "distca/base/hash.h"

#include <array>
#include <cstring>

namespace distca {
namespace {

__extension__ typedef unsigned __int128 Product;

/// Both halves of the product: its upper one brings high bits down, else two flipped signs would
/// cancel.
uint64_t mix(uint64_t hash, uint64_t word) {
  const Product product = static_cast<Product>(hash ^ word) * 0x9e3779b97f4a7c15ull;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

uint64_t hash_words(std::span<const std::byte> bytes) {
  // Four lanes: a processor works on several multiplications at a time.
  constexpr size_t kLanes = 4, kWord = sizeof(uint64_t);
  std::array<uint64_t, kLanes> lanes = {1, 2, 3, 4};
  const std::byte* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= kLanes * kWord; left -= kLanes * kWord, data += kLanes * kWord) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), data, sizeof(words));
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  std::array<uint64_t, kLanes> rest = {};
  if (left > 0) std::memcpy(rest.data(), data, left);
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = mix(lanes[lane], rest[lane]);
  uint64_t hash = bytes.size();
  for (const uint64_t lane : lanes) hash = mix(hash, lane);
  return mix(hash, 0);
}

}  // namespace distca
