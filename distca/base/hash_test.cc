#include "distca/base/hash.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace distca
