#include "distca/model/operators.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "distca/model/model_testing.h"

namespace distca {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Results, and the gradients by all inputs, of an operator.
Tensors played(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& operation) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
  Tensors all = operation(leaves);
  Tensors gradients;
  for (const at::Tensor& result : all)
    gradients.push_back(at::sin(at::arange(result.numel(), result.options()).view(result.sizes())));
  torch::autograd::backward(all, gradients);
  for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.to(weight.scalar_type());
  return (wide * (wide.square().mean(-1, true) + 1e-5).rsqrt() * weight).to(x.scalar_type());
}

/// Cosines and sines for rows x [T, heads, 32] at positions from 0 on, as rotate() wants them.
std::pair<at::Tensor, at::Tensor> tables(const at::Tensor& x) {
  const at::ScalarType wide = at::promote_types(x.scalar_type(), at::kFloat);
  const at::Tensor angles =
      at::arange(x.size(0), wide).view({x.size(0), 1, 1}).expand({x.size(0), 1, 16});
  return {angles.cos().repeat({1, 1, 2}), at::cat({-angles.sin(), angles.sin()}, -1)};
}

at::Tensor plain_rotate(const at::Tensor& x) {
  const at::Tensor angles = at::arange(x.size(0), x.options()).view({x.size(0), 1, 1});
  const at::Tensor a = x.narrow(-1, 0, 16), b = x.narrow(-1, 16, 16);
  return at::cat({a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()}, -1);
}

/// An operator of ours, and the same of ATen's operators.
struct Case {
  const char* name;
  std::function<Tensors(const Tensors&, Keep)> ours;
  std::function<Tensors(const Tensors&)> plain;
  std::function<Tensors(at::ScalarType compute, at::ScalarType main_param)> inputs;
};

constexpr int64_t kRows = 1100, kWide = 96, kInner = 160;  // several blocks

std::vector<Case> cases_of_linear() {
  return {
      {"norm_linear",
       [](const Tensors& in, Keep keep) {
         return norm_linear(in[0], in[1], 1e-5, {in[2], in[3], in[4]}, keep);
       },
       [](const Tensors& in) {
         const at::Tensor h = plain_norm(in[0], in[1]);
         return Tensors{at::linear(h, in[2]), at::linear(h, in[3]), at::linear(h, in[4])};
       },
       [](at::ScalarType compute, at::ScalarType main_param) {
         return Tensors{at::randn({kRows, kWide}, compute), 1 + .1 * at::randn({kWide}, main_param),
                        at::randn({64, kWide}, compute), at::randn({32, kWide}, compute),
                        at::randn({32, kWide}, compute)};
       }},
      {"norm_linear with biases",
       [](const Tensors& in, Keep keep) {
         return norm_linear(in[0], in[1], 1e-5, {in[2], in[3]}, keep, {in[4], in[5]});
       },
       [](const Tensors& in) {
         const at::Tensor h = plain_norm(in[0], in[1]);
         const auto product = [&](const at::Tensor& matrix, const at::Tensor& bias) {
           return (at::linear(h, matrix) + bias).to(h.scalar_type());
         };
         return Tensors{product(in[2], in[4]), product(in[3], in[5])};
       },
       [](at::ScalarType compute, at::ScalarType main_param) {
         return Tensors{at::randn({kRows, kWide}, compute), 1 + .1 * at::randn({kWide}, main_param),
                        at::randn({64, kWide}, compute),    at::randn({32, kWide}, compute),
                        at::randn({64}, main_param),        at::randn({32}, main_param)};
       }},
      {"swiglu_linear",
       [](const Tensors& in, Keep keep) {
         return Tensors{swiglu_linear(in[0], in[1], in[2], keep)};
       },
       [](const Tensors& in) { return Tensors{at::linear(at::silu(in[0]) * in[1], in[2])}; },
       [](at::ScalarType compute, at::ScalarType) {
         return Tensors{at::randn({kRows, kInner}, compute), at::randn({kRows, kInner}, compute),
                        at::randn({kWide, kInner}, compute)};
       }},
  };
}

std::vector<Case> cases_of_rotate() {
  return {
      {"rotate",
       [](const Tensors& in, Keep) {
         const auto [cosines, sines] = tables(in[0]);
         return Tensors{rotate(in[0], cosines, sines)};
       },
       [](const Tensors& in) {
         const at::ScalarType wide = at::promote_types(in[0].scalar_type(), at::kFloat);
         return Tensors{plain_rotate(in[0].to(wide)).to(in[0].scalar_type())};
       },
       [](at::ScalarType compute, at::ScalarType) {
         return Tensors{at::randn({kRows, 3, 32}, compute)};
       }},
      {"norm_rotate",
       [](const Tensors& in, Keep) {
         const auto [cosines, sines] = tables(in[0]);
         return Tensors{norm_rotate(in[0], in[1], 1e-5, cosines, sines)};
       },
       [](const Tensors& in) {
         const at::Tensor wide = in[0].to(in[1].scalar_type());
         return Tensors{plain_rotate(plain_norm(wide, in[1])).to(in[0].scalar_type())};
       },
       [](at::ScalarType compute, at::ScalarType main_param) {
         return Tensors{at::randn({kRows, 3, 32}, compute), 1 + .1 * at::randn({32}, main_param)};
       }},
  };
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> both = cases_of_linear();
    std::ranges::move(cases_of_rotate(), std::back_inserter(both));
    return both;
  }();
  return all;
}

TEST(operators, are_those_of_aten_in_one_piece) {
  struct Type {
    at::ScalarType compute, main_param;
    double bound;
  };
  for (const Type& type :
       {Type{at::kDouble, at::kDouble, 1e-13}, Type{at::kFloat, at::kFloat, 1e-5},
        Type{at::kBFloat16, at::kFloat, 2e-2}}) {
    for (const Case& operation : cases()) {
      const Tensors inputs = operation.inputs(type.compute, type.main_param);
      const Tensors got =
          played(inputs, [&](const Tensors& in) { return operation.ours(in, Keep::kProducts); });
      const Tensors want = played(inputs, operation.plain);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].scalar_type(), want[i].scalar_type());
        EXPECT_LE(distance(got[i], want[i]), type.bound) << operation.name << " " << i;
      }
    }
  }
}

TEST(operators, have_the_same_bits_whatever_they_keep_and_the_same_result_on_more_threads) {
  const int threads = at::get_num_threads();
  for (const Case& operation : cases()) {
    const Tensors inputs = operation.inputs(at::kFloat, at::kFloat);
    const auto with = [&](Keep keep) {
      return played(inputs, [&](const Tensors& in) { return operation.ours(in, keep); });
    };
    at::set_num_threads(1);
    const Tensors want = with(Keep::kProducts);
    const Tensors again = with(Keep::kInputs);
    at::set_num_threads(3);
    const Tensors other = with(Keep::kProducts);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(at::equal(again[i], want[i])) << operation.name << " " << i;
      // Matrix products may divide their sums among threads.
      EXPECT_LE(distance(other[i], want[i]), 1e-5) << operation.name << " " << i;
    }
  }
  at::set_num_threads(threads);
}

TEST(operators, take_no_rows) {
  for (const Case& operation : cases()) {
    Tensors inputs = operation.inputs(at::kFloat, at::kFloat);
    if (std::string_view(operation.name) == "rotate") continue;  // it has no gradient without rows
    const int64_t with_rows = std::string_view(operation.name) == "swiglu_linear" ? 2 : 1;
    for (int64_t i = 0; i < with_rows; ++i) inputs[i] = inputs[i].narrow(0, 0, 0);
    const Tensors got =
        played(inputs, [&](const Tensors& in) { return operation.ours(in, Keep::kProducts); });
    EXPECT_EQ(got[0].size(0), 0);
    EXPECT_EQ(got.back().abs().max().item<float>(), 0) << "the gradient of what has other rows";
  }
}

}  // namespace
}  // namespace distca
