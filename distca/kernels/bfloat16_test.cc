#include "distca/kernels/bfloat16.h"

#include <gtest/gtest.h>

#include <limits>

namespace distca::kernels {
namespace {

TEST(BFloat16Test, every_bfloat16_survives_the_way_there_and_back) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(BFloat16{static_cast<uint16_t>(bits)});
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(x))));
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(static_cast<double>(x)))));
    } else {
      EXPECT_EQ(to_bfloat16(x).bits, bits);
      EXPECT_EQ(to_bfloat16(static_cast<double>(x)).bits, bits);
    }
  }
}

TEST(BFloat16Test, ties_go_to_even) {
  EXPECT_EQ(to_bfloat16(1.0F + 0x1p-8F).bits, 0x3F80);
  EXPECT_EQ(to_bfloat16(1.0F + 0x3p-8F).bits, 0x3F82);
  EXPECT_EQ(to_bfloat16(-1.0F - 0x3p-8F).bits, 0xBF82);
  EXPECT_EQ(to_bfloat16(1.0F + 0x1p-8F + 0x1p-23F).bits, 0x3F81);
}

TEST(BFloat16Test, a_double_is_rounded_once) {
  // In float32, each is a tie: 1 + 2^-8 would go to 1, and 1 + 3 x 2^-8 to 1 + 2^-6.
  EXPECT_EQ(to_bfloat16(1.0 + 0x1p-8 + 0x1p-40).bits, 0x3F81);
  EXPECT_EQ(to_bfloat16(1.0 + 0x3p-8 - 0x1p-40).bits, 0x3F81);
  EXPECT_EQ(to_bfloat16(-1.0 - 0x1p-8 - 0x1p-40).bits, 0xBF81);
}

TEST(BFloat16Test, the_too_large_becomes_infinite) {
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(to_bfloat16(1e300).bits, 0x7F80);
  EXPECT_EQ(to_bfloat16(-1e300).bits, 0xFF80);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<double>::infinity()).bits, 0x7F80);
}

}  // namespace
}  // namespace distca::kernels
