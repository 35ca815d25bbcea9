#include "distca/base/hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace distca {
namespace {

// Values published with the algorithm.
TEST(Fnv1a64, known_values) {
  EXPECT_EQ(hash_hex(""), "cbf29ce484222325");
  EXPECT_EQ(hash_hex("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(hash_hex("foobar"), "85944171f73967e8");
}

TEST(Fnv1a64, pieces_hash_like_the_whole) {
  Fnv1a64 hash;
  hash.add("foo");
  hash.add("bar");
  EXPECT_EQ(hash.hex(), hash_hex("foobar"));
}

uint64_t hash_of(const std::vector<uint32_t>& words) {
  return hash_words(std::as_bytes(std::span(words)));
}

TEST(hash_words, every_single_flipped_bit_and_pairs_of_flipped_signs_show) {
  std::vector<uint32_t> words(37);
  std::iota(words.begin(), words.end(), 1000);
  std::set<uint64_t> seen = {hash_of(words)};
  size_t flips = 1;
  for (size_t i = 0; i < words.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit, ++flips) {
      words[i] ^= 1u << bit;
      seen.insert(hash_of(words));
      words[i] ^= 1u << bit;
    }
    for (size_t j = 0; j < i; ++j, ++flips) {
      for (const size_t at : {i, j}) words[at] ^= 1u << 31;
      seen.insert(hash_of(words));
      for (const size_t at : {i, j}) words[at] ^= 1u << 31;
    }
  }
  EXPECT_EQ(seen.size(), flips);
}

TEST(hash_words, length_and_order_count) {
  EXPECT_NE(hash_of({}), hash_of({0}));
  EXPECT_NE(hash_of({0}), hash_of({0, 0}));
  EXPECT_NE(hash_of({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), hash_of({9, 10, 3, 4, 5, 6, 7, 8, 1, 2}));
}

}  // namespace
}  // namespace distca
