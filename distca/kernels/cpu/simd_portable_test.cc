#include "distca/kernels/cpu/simd_portable.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

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

float rounded(float x) {
  return lane([](auto a, auto) { return Portable::round(a); }, x);
}

float scaled(float x, float n) { return lane(Portable::scale_by_power, x, n); }

TEST(SimdPortable, round_goes_to_the_nearest_integer_and_halves_to_even) {
  for (const float x : {0.F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 0.49999997F, -126.7F, 3000000.5F,
                        4194303.5F, 4194305.5F, -8388607.5F, 16777217.F, 1e30F, -1e30F}) {
    EXPECT_EQ(rounded(x), std::nearbyint(x)) << x;
  }
}

TEST(SimdPortable, scale_by_power_is_exact_for_normal_numbers_and_vanishes_below) {
  for (const float n : {0.F, 1.F, -1.F, 100.F, 127.F, -126.F}) {
    EXPECT_EQ(scaled(1, n), std::exp2(n)) << n;
    EXPECT_EQ(scaled(-1.25F, n), -1.25F * std::exp2(n)) << n;
  }
  for (const float n : {-127.F, -1000.F, -1e30F, -kInfinity}) EXPECT_EQ(scaled(1.4F, n), 0) << n;
  for (const float n : {128.F, 1e30F}) EXPECT_EQ(scaled(1, n), kInfinity) << n;
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
