#include "distca/runtime/cuda/deterministic_price.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <tuple>

namespace distca {
namespace {

constexpr DeterministicProbe kProbe{.shape = {.num_heads = 4,
                                              .num_kv_heads = 2,
                                              .head_dim_qk = 16,
                                              .head_dim_v = 16,
                                              .softmax_scale = 0.25},
                                    .tokens = 40,
                                    .cuda_device = -1};

/// A clock on which a backward takes 3 seconds with deterministic operators and 2 without, the
/// first of each, which loads kernels, a hundred times as long. It is read before and after each.
class Clock {
 public:
  double operator()() {
    const bool ends = reads_++ % 2 == 1;
    if (ends) now_s_ += (deterministic() ? 3 : 2) * (reads_ <= 4 ? 100 : 1);
    if (ends) ++(deterministic() ? with_ : without_);
    return now_s_;
  }
  static bool deterministic() { return at::globalContext().deterministicAlgorithms(); }
  int with() const { return with_; }
  int without() const { return without_; }

 private:
  double now_s_ = 1000;
  int reads_ = 0, with_ = 0, without_ = 0;
};

class DeterministicPriceTest : public ::testing::TestWithParam<std::tuple<bool, ScalarType>> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

INSTANTIATE_TEST_SUITE_P(settings, DeterministicPriceTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(ScalarType::kBFloat16,
                                                              ScalarType::kFloat32)));

TEST_P(DeterministicPriceTest, is_of_the_warm_backwards_and_the_setting_is_put_back) {
  const auto [setting, type] = GetParam();
  at::globalContext().setDeterministicAlgorithms(setting, /*warn_only=*/setting);
  Clock clock;
  DeterministicProbe probe = kProbe;
  probe.type = type;
  EXPECT_EQ(deterministic_price(probe, std::ref(clock)), 1.5);
  EXPECT_EQ(clock.with(), 4);
  EXPECT_EQ(clock.without(), 4);
  EXPECT_EQ(at::globalContext().deterministicAlgorithms(), setting);
  EXPECT_EQ(at::globalContext().deterministicAlgorithmsWarnOnly(), setting);
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace distca
