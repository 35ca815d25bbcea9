#include "bench/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca::bench {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(Rounds, every_contender_runs_in_every_round_and_the_order_turns) {
  std::vector<int> order;
  const auto contender = [&](int name) {
    return Contender{.flops = 3e9, .seconds = [&order, name] {
                       order.push_back(name);
                       return 1.0;
                     }};
  };
  const std::vector<Rates> rates = interleaved_rates({contender(0), contender(1)}, 3, 0.5);
  EXPECT_THAT(order, ElementsAre(0, 1, 0, 1, 1, 0, 0, 1));  // once each first
  EXPECT_THAT(rates, ElementsAre(Rates(3, 3.0), Rates(3, 3.0)));
}

TEST(Rounds, short_work_is_repeated_to_fill_the_time) {
  int calls = 0;
  const Contender contender{.flops = 1e6, .seconds = [&] { return ++calls, 1e-3; }};
  EXPECT_THAT(interleaved_rates({contender}, 1, 10e-3)[0], Each(::testing::DoubleNear(1, 1e-9)));
  EXPECT_EQ(calls, 2 + 1 + 10);
}

}  // namespace
}  // namespace distca::bench
