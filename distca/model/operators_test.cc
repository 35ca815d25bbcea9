#include <ATen/ATen.h>

#include "distca/model/operators.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "distca/model/model_testing.h"

namespace distca {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors gradients_by(const Tensors& results) {
  Tensors gradients;
  for (const at::Tensor& result : results)
    gradients.push_back(at::sin(at::arange(result.numel(), result.options()).view(result.sizes())));
  return gradients;
}

/// Results, and the gradients by all inputs, of what autograd records.
Tensors recorded(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& operation) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
  Tensors all = operation(leaves);
  torch::autograd::backward(all, gradients_by(all));
  for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

/// Results of an operator of ours, and what gives the gradients by all inputs of those by them.
struct Played {
  Tensors results;
  std::function<Tensors(const Tensors& d_results)> backward;
  Tensors all() const {
    Tensors both = results;
    std::ranges::move(backward(gradients_by(results)), std::back_inserter(both));
    return both;
  }
};

Played play_norm_linear(const Tensors& in, size_t matrices, Keep keep) {
  const Tensors of_matrices(in.begin() + 2, in.begin() + 2 + matrices);
  const Tensors biases(in.begin() + 2 + matrices, in.end());
  Normed kept;
  const Tensors results = norm_linear(in[0], in[1], 1e-5, of_matrices, biases, keep, &kept);
  return {results, [=](const Tensors& d_results) {
            const auto [d_x, d_weight] =
                norm_linear_backward(kept, in[0], in[1], of_matrices, d_results);
            Tensors gradients = {d_x, d_weight};
            const at::Tensor rows = kept.again(in[0], in[1], 1e-5, in[2].scalar_type());
            for (const at::Tensor& d_y : d_results) gradients.push_back(matrix_gradient(d_y, rows));
            for (size_t i = 0; i < biases.size(); ++i)
              gradients.push_back(bias_gradient(d_results[i], in[1].scalar_type()));
            return gradients;
          }};
}

Played play_swiglu(const Tensors& in) {
  return {{swiglu(in[0], in[1])}, [=](const Tensors& d_results) {
            at::Tensor d_gate = at::empty_like(in[0]), d_up = d_results[0].clone();
            swiglu_backward(in[0], in[1], d_gate, d_up);
            return Tensors{d_gate, d_up};
          }};
}

at::Tensor norm_of_float(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.to(weight.scalar_type());
  return (wide * (wide.square().mean(-1, true) + 1e-5).rsqrt() * weight).to(x.scalar_type());
}

/// Cosines and sines for rows x [T, heads, 32] at positions from 0 on, as rotate() wants them.
Rope tables(const at::Tensor& x) {
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
  std::function<Played(const Tensors&, Keep)> ours;
  std::function<Tensors(const Tensors&)> plain;
  std::function<Tensors(at::ScalarType compute, at::ScalarType main_param)> inputs;
};

constexpr int64_t kRows = 1100, kWide = 96, kInner = 160;  // several blocks

std::vector<Case> cases_of_linear() {
  return {
      {"norm_linear", [](const Tensors& in, Keep keep) { return play_norm_linear(in, 3, keep); },
       [](const Tensors& in) {
         const at::Tensor h = norm_of_float(in[0], in[1]);
         return Tensors{at::linear(h, in[2]), at::linear(h, in[3]), at::linear(h, in[4])};
       },
       [](at::ScalarType compute, at::ScalarType main_param) {
         return Tensors{at::randn({kRows, kWide}, compute), 1 + .1 * at::randn({kWide}, main_param),
                        at::randn({64, kWide}, compute), at::randn({32, kWide}, compute),
                        at::randn({32, kWide}, compute)};
       }},
      {"norm_linear with biases",
       [](const Tensors& in, Keep keep) { return play_norm_linear(in, 2, keep); },
       [](const Tensors& in) {
         const at::Tensor h = norm_of_float(in[0], in[1]);
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
      {"swiglu", [](const Tensors& in, Keep) { return play_swiglu(in); },
       [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1]}; },
       [](at::ScalarType compute, at::ScalarType) {
         return Tensors{at::randn({kRows, kInner}, compute), at::randn({kRows, kInner}, compute)};
       }},
  };
}

std::vector<Case> cases_of_rotate() {
  return {
      {"rotate",
       [](const Tensors& in, Keep) {
         const Rope rope = tables(in[0]);
         return Played{{rotate(in[0], rope)}, [=](const Tensors& d_results) {
                         return Tensors{rotate(d_results[0], rope, /*direction=*/-1)};
                       }};
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
         const Rope rope = tables(in[0]);
         at::Tensor factors;
         const at::Tensor y = norm_rotate(in[0], in[1], 1e-5, rope, &factors);
         return Played{{y}, [=](const Tensors& d_results) {
                         const auto [d_x, d_weight] =
                             norm_rotate_backward(d_results[0], in[0], in[1], factors, rope);
                         return Tensors{d_x, d_weight};
                       }};
       },
       [](const Tensors& in) {
         const at::Tensor wide = in[0].to(in[1].scalar_type());
         return Tensors{plain_rotate(norm_of_float(wide, in[1])).to(in[0].scalar_type())};
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
      const Tensors got = operation.ours(inputs, Keep::kProducts).all();
      const Tensors want = recorded(inputs, operation.plain);
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
    const auto with = [&](Keep keep) { return operation.ours(inputs, keep).all(); };
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
    const bool has_two = std::string_view(operation.name) == "swiglu";
    for (int64_t i = 0; i < (has_two ? 2 : 1); ++i) inputs[i] = inputs[i].narrow(0, 0, 0);
    const Tensors got = operation.ours(inputs, Keep::kProducts).all();
    EXPECT_EQ(got[0].size(0), 0);
    EXPECT_EQ(got.back().abs().sum().item<float>(), 0) << "the gradient of what has other rows";
  }
}

}  // namespace
}  // namespace distca
