#include "distca/train/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "distca/comm/thread_group.h"

namespace distca {
namespace {

TEST(learning_rate, warms_up_linearly_and_ends_where_the_cosine_ends) {
  const Config::Optimizer options{.lr = 1.0, .min_lr_ratio = 0.1, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate(options, 0, 100), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(options, 3, 100), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 4, 100), 1.0);
  EXPECT_NEAR(learning_rate(options, 99, 100), 0.1, 1e-12);
  for (int step = 5; step < 100; ++step) {
    EXPECT_LT(learning_rate(options, step, 100), learning_rate(options, step - 1, 100));
  }
}

Weight matrix(int64_t rows, int64_t columns) {
  return {.name = "matrix", .shape = {rows, columns}};
}
Weight vector(int64_t size) { return {.name = "vector", .shape = {size}}; }

TEST(optimizer, gradients_are_summed_over_ranks_and_clipped_by_the_global_norm) {
  run_ranks(3, {}, [](Communicator& comm) {
    at::Tensor weight = at::zeros({2, 2}, at::kDouble).requires_grad_(true);
    at::Tensor bias = at::zeros({3}, at::kDouble).requires_grad_(true);
    Optimizer optimizer({matrix(2, 2), vector(3)}, {weight, bias}, {.max_grad_norm = 1.0});
    weight.mutable_grad().fill_(comm.rank());  // sum over ranks: 3
    bias.mutable_grad().fill_(1.0);            // sum over ranks: 3
    const auto [norm, loss_sum] = optimizer.sum_and_clip(comm, 1.0 + comm.rank());
    EXPECT_EQ(loss_sum, 6);
    EXPECT_NEAR(norm, std::sqrt(7 * 9.0), 1e-14 * norm);
    EXPECT_NEAR(weight.grad()[0][0].item<double>(), 3.0 / norm, 1e-15);
    EXPECT_NEAR(bias.grad()[2].item<double>(), 3.0 / norm, 1e-15);
    optimizer.zero_gradients();
    EXPECT_EQ(weight.grad().abs().sum().item<double>(), 0.0);
  });
}

TEST(optimizer, decays_matrices_and_leaves_norms_alone) {
  run_ranks(1, {}, [](Communicator&) {
    at::Tensor weight = at::ones({2, 2}).requires_grad_(true);
    at::Tensor norm = at::ones({2}).requires_grad_(true);
    Optimizer optimizer({matrix(2, 2), vector(2)}, {weight, norm}, {.weight_decay = 0.5});
    optimizer.update(0.1);  // zero gradients: only decay moves anything
    EXPECT_FLOAT_EQ(weight[0][0].item<float>(), 1.0f - 0.1f * 0.5f);
    EXPECT_EQ(norm[0].item<float>(), 1.0f);
  });
}

TEST(optimizer, goes_on_from_its_state_bit_for_bit) {
  const Config::Optimizer options{.weight_decay = 0.1};
  const auto step = [](at::Tensor& weight, Optimizer& optimizer, double gradient) {
    weight.mutable_grad().fill_(gradient);
    optimizer.update(0.01);
  };
  at::Tensor weight = at::ones({2, 3}).requires_grad_(true);
  Optimizer first({matrix(2, 3)}, {weight}, options);
  EXPECT_EQ(first.updates(), 0);
  step(weight, first, 0.5);
  step(weight, first, -0.25);
  EXPECT_EQ(first.updates(), 2);

  at::Tensor other = at::zeros({2, 3}).requires_grad_(true);
  Optimizer second({matrix(2, 3)}, {other}, options);
  {
    const at::NoGradGuard no_grad;
    for (const StatePart part : kStateParts)
      at::Tensor(second.state(part)[0]).detach().copy_(first.state(part)[0].detach());
  }
  second.restore(first.updates());
  step(weight, first, 0.125);
  step(other, second, 0.125);
  EXPECT_TRUE(at::equal(weight, other));
  EXPECT_EQ(second.updates(), 3);
}

TEST(optimizer, moments_are_zero_before_the_first_update) {
  at::Tensor weight = at::ones({2, 3}).requires_grad_(true);
  Optimizer optimizer({matrix(2, 3)}, {weight}, {});
  EXPECT_EQ(optimizer.state(StatePart::kExpAvg)[0].abs().sum().item<float>(), 0);
  EXPECT_EQ(optimizer.updates(), 0);
}

}  // namespace
}  // namespace distca
