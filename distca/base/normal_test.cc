#include "distca/base/normal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "distca/base/hash.h"

namespace distca {
namespace {

TEST(normal, the_quantile_is_that_of_the_tables) {
  // From the error function's inverse in 50 digits.
  const std::pair<double, double> known[] = {{0.5, 0.0},
                                             {0.75, 0.6744897501960817},
                                             {0.9, 1.2815515655446004},
                                             {0.975, 1.959963984540054},
                                             {0.9999, 3.719016485455709},
                                             {1e-10, -6.361340902404056},
                                             {1e-15, -7.941345326170998}};
  for (const auto& [p, z] : known) {
    EXPECT_NEAR(normal_quantile(p), z, 2e-7 * std::abs(z)) << p;
  }
  for (const double p : {0.01, 0.07, 0.3}) {
    EXPECT_NEAR(std::erfc(-normal_quantile(p) / std::sqrt(2)) / 2, p, 1e-6 * p);
  }
}

TEST(normal, draws_are_pinned) {
  // Weights of an old run must come back on every machine: these values may never change.
  std::vector<float> draws(kNormalChunk);
  draw_normal_chunk(1, 2, 0.02, draws);
  EXPECT_EQ(hash_words(std::as_bytes(std::span(draws))), 11905648790620917152u);
  std::vector<float> fewer(1000), other(1000);
  draw_normal_chunk(1, 2, 0.02, fewer);
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), draws.begin()));
  draw_normal_chunk(1, 3, 0.02, other);
  EXPECT_NE(fewer, other);
  draw_normal_chunk(2, 2, 0.02, other);
  EXPECT_NE(fewer, other);
}

TEST(normal, moments_and_tails_are_those_of_a_normal_distribution) {
  constexpr int kChunks = 16;
  constexpr double kDraws = kChunks * static_cast<double>(kNormalChunk);
  double sums[5] = {}, product = 0, beyond[6] = {};
  std::vector<float> draws(kNormalChunk);
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    draw_normal_chunk(5, static_cast<uint64_t>(chunk), 2.0, draws);
    for (size_t i = 0; i < draws.size(); ++i) {
      const double z = draws[i] / 2.0;
      double of_power = 1;
      for (int power = 1; power <= 4; ++power) sums[power] += of_power *= z;
      if (i > 0) product += z * draws[i - 1] / 2.0;
      for (int limit = 1; limit < 6; ++limit) beyond[limit] += std::abs(z) > limit ? 1 : 0;
    }
  }
  // Five standard errors each: a seed that is fixed passes or fails for good.
  const double error = 5 / std::sqrt(kDraws);
  EXPECT_NEAR(sums[1] / kDraws, 0, error);
  EXPECT_NEAR(sums[2] / kDraws, 1, error * std::sqrt(2));
  EXPECT_NEAR(sums[3] / kDraws, 0, error * std::sqrt(15));
  EXPECT_NEAR(sums[4] / kDraws, 3, error * std::sqrt(96));
  EXPECT_NEAR(product / kDraws, 0, error);
  for (int limit = 1; limit < 6; ++limit) {
    const double expected = kDraws * std::erfc(limit / std::sqrt(2));
    EXPECT_NEAR(beyond[limit], expected, 5 * std::sqrt(expected) + 1) << limit;
  }
}

}  // namespace
}  // namespace distca
