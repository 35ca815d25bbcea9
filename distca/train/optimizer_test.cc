#include "distca/train/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
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

Weight matrix(int64_t rows, int64_t columns) {
  return {.name = "matrix", .shape = {rows, columns}};
}
Weight vector(int64_t size) { return {.name = "vector", .shape = {size}}; }

/// The exchange of a single rank, in one bucket.
std::shared_ptr<const GradientExchange> alone(const std::vector<Weight>& weights) {
  return std::make_shared<const GradientExchange>(
      make_gradient_exchange({.elements = flat_layout(weights).elements, .block = kFlatBlock}));
}

Optimizer optimizer_of(const std::vector<Weight>& weights,
                       const std::vector<at::Tensor>& parameters,
                       const Config::Optimizer& options) {
  return Optimizer({.table = weights, .parameters = parameters}, options, alone(weights));
}

TEST(optimizer, decays_matrices_and_leaves_norms_alone) {
  const at::Tensor weight = at::ones({2, 2}), norm = at::ones({2});
  Optimizer optimizer =
      optimizer_of({matrix(2, 2), vector(2)}, {weight, norm}, {.weight_decay = 0.5});
  optimizer.begin_update(0.1, 1);
  optimizer.update(0);  // zero gradients: only decay moves anything
  EXPECT_FLOAT_EQ(weight[0][0].item<float>(), 1.0f - 0.1f * 0.5f);
  EXPECT_EQ(norm[0].item<float>(), 1.0f);
}

TEST(optimizer, gradients_count_times_the_scale_and_are_zero_again) {
  const at::Tensor weight = at::ones({2, 2});
  Optimizer optimizer = optimizer_of({matrix(2, 2)}, {weight}, {});
  at::Tensor(weight).mutable_grad().fill_(4.0);
  optimizer.begin_update(0.1, 0.25);
  optimizer.update(0);
  EXPECT_FLOAT_EQ(optimizer.state(StatePart::kExpAvg, 0, {0, 4})[3].item<float>(), 0.1f);
  optimizer.zero_gradients();
  EXPECT_EQ(weight.grad().abs().sum().item<float>(), 0.0f);
}

TEST(optimizer, goes_on_from_its_state_bit_for_bit) {
  const Config::Optimizer options{.weight_decay = 0.1};
  const auto step = [](const at::Tensor& weight, Optimizer& optimizer, double gradient) {
    at::Tensor(weight).mutable_grad().fill_(gradient);
    optimizer.begin_update(0.01, 1);
    optimizer.update(0);
  };
  const at::Tensor weight = at::ones({2, 3});
  Optimizer first = optimizer_of({matrix(2, 3)}, {weight}, options);
  EXPECT_EQ(first.updates(), 0);
  step(weight, first, 0.5);
  step(weight, first, -0.25);
  EXPECT_EQ(first.updates(), 2);

  const at::Tensor other = at::zeros({2, 3});
  Optimizer second = optimizer_of({matrix(2, 3)}, {other}, options);
  for (const StatePart part : kStateParts)
    second.load(part, 0, first.state(part, 0, {0, 6}).view({2, 3}));
  second.set_updates(first.updates());
  step(weight, first, 0.125);
  step(other, second, 0.125);
  EXPECT_TRUE(at::equal(weight, other));
  EXPECT_EQ(second.updates(), 3);
}

TEST(optimizer, moments_are_zero_before_the_first_update) {
  Optimizer optimizer = optimizer_of({matrix(2, 3)}, {at::ones({2, 3})}, {});
  EXPECT_EQ(optimizer.state(StatePart::kExpAvg, 0, {0, 6}).abs().sum().item<float>(), 0);
  EXPECT_EQ(optimizer.updates(), 0);
}

}  // namespace
}  // namespace distca
