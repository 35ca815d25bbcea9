#include "distca/train/lr_schedule.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <vector>

namespace distca {
namespace {

Config with_schedule(const std::vector<std::string>& more) {
  std::vector<std::string> keys = {"optimizer.lr=1.0", "optimizer.warmup_steps=4",
                                   "train.steps=100"};
  keys.insert(keys.end(), more.begin(), more.end());
  return load_config("", keys);
}

TEST(learning_rate, warms_up_linearly_and_ends_where_the_cosine_ends) {
  const Config config = with_schedule({});
  EXPECT_DOUBLE_EQ(learning_rate(config, 0), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(config, 3), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 4), 1.0);
  EXPECT_NEAR(learning_rate(config, 99), 0.1, 1e-12);
  for (int step = 5; step < 100; ++step) {
    EXPECT_LT(learning_rate(config, step), learning_rate(config, step - 1));
  }
}

TEST(learning_rate, of_every_schedule_has_the_values_of_megatron) {
  // OptimizerParamScheduler of megatron-core 0.16.1 gives these values in these steps with a
  // warm-up of 4, lr_decay_steps = 19 (our last step's index) and an exponential WSD decay of 6.
  constexpr std::array<int64_t, 8> kSteps = {4, 9, 13, 14, 16, 18, 19, 25};
  const std::map<std::string, std::array<double, 8>> expected = {
      {"cosine", {1, .775, .410942352531, .325, .185942352531, .10983357967, .1, .1}},
      {"linear", {1, .7, .46, .4, .28, .16, .1, .1}},
      {"constant", {1, 1, 1, 1, 1, 1, 1, 1}},
      {"wsd", {1, 1, 1, .803617692653, .472792206136, .210215843478, .1, .1}}};
  for (const auto& [schedule, rates] : expected) {
    const Config config =
        with_schedule({"optimizer.schedule=" + schedule, "optimizer.decay_steps=20",
                       "optimizer.wsd_decay_steps=6"});
    EXPECT_DOUBLE_EQ(learning_rate(config, 1), 0.5) << "the warm-up is the same for all";
    for (size_t i = 0; i < kSteps.size(); ++i)
      EXPECT_NEAR(learning_rate(config, kSteps[i]), rates[i], 1e-11) << schedule << kSteps[i];
  }
}

TEST(learning_rate, decays_over_the_run_unless_a_length_is_given) {
  for (const char* schedule : {"cosine", "linear", "wsd"}) {
    const std::vector<std::string> keys = {std::string("optimizer.schedule=") + schedule,
                                           "optimizer.wsd_decay_steps=10"};
    const Config run = with_schedule(keys);
    Config own = run;
    own.train.steps = 1000;
    EXPECT_GT(learning_rate(own, 95), learning_rate(run, 95));
    own.optimizer.decay_steps = 100;
    for (int64_t step = 0; step < 120; ++step)
      EXPECT_EQ(learning_rate(own, step), learning_rate(run, step)) << schedule << step;
  }
}

}  // namespace
}  // namespace distca
