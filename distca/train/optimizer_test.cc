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
