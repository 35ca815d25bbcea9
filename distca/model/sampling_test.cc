#include "distca/model/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "distca/base/error.h"

namespace distca {
namespace {

constexpr int kDraws = 20000;
const std::vector<float> kLogits = {0.f, 2.f, -1.f, 1.f, 2.f};

/// How often each token is drawn, as a share.
std::vector<double> shares(const Sampling& sampling, std::span<const float> logits = kLogits) {
  Sampler sampler(sampling, 7);
  std::vector<double> drawn(logits.size());
  for (int i = 0; i < kDraws; ++i) ++drawn.at(sampler.next(logits));
  for (double& share : drawn) share /= kDraws;
  return drawn;
}

/// softmax(logits / temperature) over the tokens of `kept`.
std::vector<double> probabilities(double temperature, const std::set<size_t>& kept) {
  std::vector<double> result(kLogits.size());
  double sum = 0;
  for (const size_t id : kept) sum += result[id] = std::exp(kLogits[id] / temperature);
  for (double& share : result) share /= sum;
  return result;
}

/// Within 5 standard deviations of the mean of so many draws.
void expect_drawn(const Sampling& sampling, const std::set<size_t>& kept) {
  const std::vector<double> got = shares(sampling),
                            want = probabilities(sampling.temperature, kept);
  for (size_t id = 0; id < want.size(); ++id)
    EXPECT_NEAR(got[id], want[id], 5 * std::sqrt(want[id] * (1 - want[id]) / kDraws)) << id;
}

TEST(sampling, tokens_come_as_often_as_the_softmax_says) {
  expect_drawn({}, {0, 1, 2, 3, 4});
  expect_drawn({.temperature = 0.5}, {0, 1, 2, 3, 4});
  expect_drawn({.temperature = 3}, {0, 1, 2, 3, 4});
}

TEST(sampling, top_k_and_top_p_leave_the_likeliest) {
  expect_drawn({.top_k = 3}, {1, 3, 4});
  expect_drawn({.top_k = 1}, {1});  // 4 is as likely, and comes later
  expect_drawn({.top_k = 99}, {0, 1, 2, 3, 4});
  // The probabilities of ids 1, 4, 3, 0, 2 are .392, .392, .144, .053, .020.
  expect_drawn({.top_p = 0.3}, {1});
  expect_drawn({.top_p = 0.5}, {1, 4});
  expect_drawn({.top_p = 0.8}, {1, 3, 4});
  expect_drawn({.top_p = 0.95}, {0, 1, 3, 4});
  expect_drawn({.top_p = 1e-9}, {1});
  // First top_k, then top_p of what it leaves; first the temperature.
  expect_drawn({.top_k = 3, .top_p = 0.9}, {1, 3, 4});
  expect_drawn({.top_k = 2, .top_p = 0.9}, {1, 4});
  expect_drawn({.temperature = 0.1, .top_p = 0.95}, {1, 4});
}

TEST(sampling, temperature_zero_takes_the_first_of_the_likeliest) {
  for (const uint64_t seed : {1, 2, 3})
    EXPECT_EQ(Sampler({.temperature = 0, .top_k = 2, .top_p = 0.1}, seed).next(kLogits), 1);
}

TEST(sampling, the_seed_decides) {
  const auto drawn = [](uint64_t seed) {
    Sampler sampler({}, seed);
    std::vector<int64_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.next(kLogits));
    return ids;
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

TEST(sampling, large_logits_do_not_overflow) {
  const std::vector<float> large = {1e30f, -1e30f, 1e30f};
  const std::vector<double> got = shares({}, large);
  EXPECT_NEAR(got[0], 0.5, 5 * std::sqrt(0.25 / kDraws));
  EXPECT_EQ(got[1], 0);
}

TEST(sampling, logits_that_are_not_finite_are_refused) {
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), INFINITY}) {
    for (const double temperature : {0.0, 1.0}) {
      const std::vector<float> logits = {1.f, wrong, 0.f};
      try {
        Sampler({.temperature = temperature}, 1).next(logits);
        FAIL() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
      }
    }
  }
}

}  // namespace
}  // namespace distca
