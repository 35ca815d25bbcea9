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

TEST(optimizer, gradients_are_summed_over_ranks_and_clipped_by_the_global_norm) {
  run_ranks(3, {}, [](Communicator& comm) {
    at::Tensor weight = at::zeros({2, 2}, at::kDouble).requires_grad_(true);
    at::Tensor bias = at::zeros({3}, at::kDouble).requires_grad_(true);
    Optimizer optimizer({weight, bias}, {.max_grad_norm = 1.0});
    weight.mutable_grad().fill_(comm.rank());  // sum over ranks: 3
    bias.mutable_grad().fill_(1.0);            // sum over ranks: 3
    const double norm = optimizer.sum_and_clip(comm);
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
    Optimizer optimizer({weight, norm}, {.weight_decay = 0.5});
    optimizer.update(0.1);  // zero gradients: only decay moves anything
    EXPECT_FLOAT_EQ(weight[0][0].item<float>(), 1.0f - 0.1f * 0.5f);
    EXPECT_EQ(norm[0].item<float>(), 1.0f);
  });
}

}  // namespace
}  // namespace distca
