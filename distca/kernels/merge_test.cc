#include "distca/kernels/merge.h"

#include <gtest/gtest.h>

#include <cmath>

#include "distca/base/error.h"
#include "distca/kernels/attention_testing.h"

namespace distca::kernels {
namespace {

using testing::kNoKey;
using testing::Tensor;
using testing::unit_roundoff;

constexpr RowShape kRowShape{.tokens = 5, .heads = 3, .dim = 8};

struct Part {
  explicit Part(ScalarType type, ScalarType o_type)
      : o(o_type, kRowShape.tokens, kRowShape.heads, kRowShape.dim, 2),
        lse(accumulator_type(type), kRowShape.tokens, kRowShape.heads, 1),
        o_type(o_type) {}
  void fill(std::mt19937_64& random, double lse_spread) {
    std::normal_distribution<double> normal;
    o.fill([&] { return normal(random); });
    lse.fill([&] { return lse_spread * normal(random); });
  }
  Partial partial() { return {o.rows(), o_type, lse.rows()}; }
  Tensor o, lse;
  ScalarType o_type;
};

class MergeTest : public ::testing::TestWithParam<std::pair<ScalarType, ScalarType>> {};

TEST_P(MergeTest, weighs_parts_by_their_share_of_the_exponentials) {
  const auto [type, o_type] = GetParam();
  std::mt19937_64 random(3);
  for (const double spread : {1.0, 1e4}) {
    std::vector<Part> parts(3, Part(type, accumulator_type(type)));
    for (Part& part : parts) part.fill(random, spread);
    Part merged(type, o_type);
    merge_partials(kRowShape, type,
                   std::vector{parts[0].partial(), parts[1].partial(), parts[2].partial()},
                   merged.partial());
    for (int64_t t = 0; t < kRowShape.tokens; ++t) {
      for (int64_t h = 0; h < kRowShape.heads; ++h) {
        // The longer type keeps exp of the small spread apart from the code under test.
        const long double base = std::max(
            {parts[0].lse.at(t, h, 0), parts[1].lse.at(t, h, 0), parts[2].lse.at(t, h, 0)});
        long double sum = 0;
        for (const Part& part : parts) sum += std::exp(part.lse.at(t, h, 0) - base);
        const auto lse = static_cast<double>(base + std::log(sum));
        const double u = unit_roundoff(accumulator_type(type));
        EXPECT_NEAR(merged.lse.at(t, h, 0), lse, 2 * u * (1 + std::fabs(lse)));
        for (int64_t e = 0; e < kRowShape.dim; ++e) {
          double o = 0, magnitude = 0;
          for (const Part& part : parts) {
            const auto weight = static_cast<double>(std::exp(part.lse.at(t, h, 0) - base) / sum);
            o += weight * part.o.at(t, h, e);
            magnitude += weight * std::fabs(part.o.at(t, h, e));
          }
          const double bound = unit_roundoff(o_type) + 16 * unit_roundoff(ScalarType::kFloat64);
          EXPECT_NEAR(merged.o.at(t, h, e), o, bound * magnitude);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MergeTest,
                         ::testing::Values(std::pair(ScalarType::kFloat64, ScalarType::kFloat64),
                                           std::pair(ScalarType::kFloat32, ScalarType::kFloat32),
                                           std::pair(ScalarType::kBFloat16, ScalarType::kFloat32),
                                           std::pair(ScalarType::kBFloat16,
                                                     ScalarType::kBFloat16)));

TEST(MergeTest, a_part_without_keys_changes_nothing) {
  std::mt19937_64 random(4);
  const ScalarType type = ScalarType::kFloat64;
  Part full(type, type), none(type, type), merged(type, type);
  full.fill(random, 1);
  none.lse.fill([] { return kNoKey; });
  none.o.fill([] { return 0; });
  merge_partials(kRowShape, type, std::vector{none.partial(), full.partial()}, merged.partial());
  EXPECT_EQ(merged.o.values(), full.o.values());
  EXPECT_EQ(merged.lse.values(), full.lse.values());
}

TEST(MergeTest, no_keys_anywhere_give_zero_and_minus_infinity) {
  const ScalarType type = ScalarType::kFloat32;
  Part none(type, type), merged(type, type);
  none.lse.fill([] { return kNoKey; });
  merged.o.fill([] { return 7; });
  merge_partials(kRowShape, type, std::vector{none.partial(), none.partial()}, merged.partial());
  for (const double value : merged.o.values()) EXPECT_EQ(value, 0);
  for (const double value : merged.lse.values()) EXPECT_EQ(value, kNoKey);
}

TEST(MergeTest, the_result_may_be_a_part) {
  std::mt19937_64 random(5);
  const ScalarType type = ScalarType::kFloat64;
  Part a(type, type), b(type, type), apart(type, type);
  a.fill(random, 1), b.fill(random, 1);
  merge_partials(kRowShape, type, std::vector{a.partial(), b.partial()}, apart.partial());
  merge_partials(kRowShape, type, std::vector{a.partial(), b.partial()}, a.partial());
  EXPECT_EQ(a.o.values(), apart.o.values());
  EXPECT_EQ(a.lse.values(), apart.lse.values());
}

TEST(MergeTest, missing_memory_is_a_check) {
  const ScalarType type = ScalarType::kFloat64;
  Part part(type, type);
  EXPECT_THROW(merge_partials(kRowShape, type, std::vector{part.partial()}, Partial{}),
               CheckFailure);
}

TEST(OutputFromDeltaTest, its_row_sum_with_d_o_is_delta) {
  std::mt19937_64 random(7);
  for (const ScalarType type :
       {ScalarType::kFloat64, ScalarType::kFloat32, ScalarType::kBFloat16}) {
    for (const double size : {1.0, 1e-30, 1e30, 1e-200, 1e200}) {
      if (type != ScalarType::kFloat64 && std::fabs(std::log10(size)) > 30) continue;
      Part d_o(type, type), o(type, type);
      std::normal_distribution<double> normal;
      d_o.o.fill([&] { return size * normal(random); });
      d_o.lse.fill([&] { return size * normal(random); });
      output_from_delta(kRowShape, type, d_o.o.rows(), d_o.lse.rows(), o.o.rows());
      for (int64_t t = 0; t < kRowShape.tokens; ++t) {
        for (int64_t h = 0; h < kRowShape.heads; ++h) {
          double sum = 0;
          for (int64_t e = 0; e < kRowShape.dim; ++e) sum += d_o.o.at(t, h, e) * o.o.at(t, h, e);
          // All terms have delta's sign, so roundings of O stay relative to delta.
          const double delta = d_o.lse.at(t, h, 0);
          EXPECT_NEAR(sum, delta, (unit_roundoff(type) + 32 * 0x1p-53) * std::fabs(delta));
        }
      }
    }
  }
}

TEST(OutputFromDeltaTest, a_row_of_zeros_gives_zeros) {
  const ScalarType type = ScalarType::kFloat32;
  Part d_o(type, type), o(type, type);
  d_o.o.fill([] { return 0; });
  d_o.lse.fill([] { return 3; });
  o.o.fill([] { return 7; });
  output_from_delta(kRowShape, type, d_o.o.rows(), d_o.lse.rows(), o.o.rows());
  for (const double value : o.o.values()) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace distca::kernels
