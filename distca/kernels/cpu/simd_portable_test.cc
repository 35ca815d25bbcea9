#include "distca/kernels/cpu/simd_portable.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "distca/kernels/bfloat16.h"

namespace distca::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Lane 2 of an operation on vectors whose lanes hold 0 elsewhere.
template <typename Operation>
float lane(Operation operation, float a, float b = 0) {
  const std::array<float, 4> x{0, 0, a, 0}, y{0, 0, b, 0};
  std::array<float, 4> result{};
  Portable::store(result.data(), operation(Portable::load(x.data()), Portable::load(y.data())));
  return result[2];
}

float fraction(float x) {
  return lane([](auto a, auto) { return Portable::fraction(a); }, x);
}

float scaled(float x, float n) { return lane(Portable::scale_by_power, x, n); }

TEST(SimdPortable, powers_scale_exactly_and_vanish_below_the_normal_numbers) {
  for (const float n : {0.F, 1.F, -1.F, 100.F, 127.F, -126.F}) {
    EXPECT_EQ(scaled(1, n), std::exp2(n)) << n;
    EXPECT_EQ(scaled(-1.25F, n + 0.5F), -1.25F * std::exp2(n)) << n;
  }
  for (const float n : {-126.5F, -1000.F, -1e30F, -kInfinity}) EXPECT_EQ(scaled(1.4F, n), 0) << n;
  for (const float n : {128.F, 1e30F, kInfinity}) EXPECT_EQ(scaled(1, n), kInfinity) << n;
}

TEST(SimdPortable, fraction_is_what_floor_leaves) {
  for (const float x : {0.F, 0.75F, -0.25F, -1.F, -3.75F, -126.875F, 127.5F}) {
    EXPECT_EQ(fraction(x), x - std::floor(x)) << x;
  }
  for (const float x : {-1e30F, -kInfinity, kInfinity}) EXPECT_EQ(fraction(x), 0) << x;
  EXPECT_TRUE(std::isnan(fraction(std::numeric_limits<float>::quiet_NaN())));
}

TEST(SimdPortable, bf16_is_read_and_rounded_as_elsewhere) {
  const std::array<float, 7> numbers{1,
                                     1.00390625F,
                                     1.01171875F,
                                     -3.14159F,
                                     1e-40F,
                                     kInfinity,
                                     std::numeric_limits<float>::quiet_NaN()};
  for (const float number : numbers) {
    for (const int count : {1, 3, 4}) {
      std::array<uint16_t, 5> half{7, 7, 7, 7, 7};
      Portable::narrow_first(half.data(), count, Portable::set(number));
      std::array<float, 4> back{};
      Portable::store(back.data(), Portable::widen_first(half.data(), count));
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(half[i], i < count ? to_bfloat16(number).bits : 7) << number << " " << i;
      }
      for (int i = 0; i < 4; ++i) {
        const float expected = i < count ? to_float(to_bfloat16(number)) : 0;
        EXPECT_TRUE(back[i] == expected || std::isnan(number)) << number << " " << i;
      }
    }
  }
}

TEST(SimdPortable, a_square_is_transposed) {
  Portable::Vector square[4];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) square[i][j] = static_cast<float>(10 * i + j);
  }
  Portable::transpose(square);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) EXPECT_EQ(square[i][j], 10 * j + i) << i << j;
  }
}

TEST(SimdPortable, only_the_first_words_are_read_and_written) {
  const std::array<float, 4> numbers{1, 2, 3, 4};
  for (int count = 1; count <= 4; ++count) {
    std::array<float, 4> to{9, 9, 9, 9}, read{};
    const auto first = Portable::load_first(reinterpret_cast<const Word*>(numbers.data()), count);
    Portable::store(read.data(), first);
    Portable::store_first(to.data(), count, Portable::load(numbers.data()));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(read[i], i < count ? numbers[i] : 0);
      EXPECT_EQ(to[i], i < count ? numbers[i] : 9);
    }
  }
}

TEST(SimdPortable, lanes_at_most_are_selected) {
  const std::array<int32_t, 5> numbers{-7, 3, 4, 5, INT32_MAX};
  for (size_t i = 0; i < 2; ++i) {  // from an address that no vector is aligned to
    const auto mask =
        Portable::at_most(Portable::load_integers(numbers.data() + i), Portable::set_integer(4));
    std::array<float, 4> chosen{};
    Portable::store(chosen.data(), Portable::select(mask, Portable::set(1), Portable::set(0)));
    for (size_t j = 0; j < 4; ++j) EXPECT_EQ(chosen[j], numbers[i + j] <= 4 ? 1 : 0) << i << j;
  }
}

}  // namespace
}  // namespace distca::kernels
