// Errors of the CPU attention kernel against double, compared with those of ATen's CPU
// scaled_dot_product_attention on the same inputs.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "distca/kernels/attention_testing.h"
#include "distca/kernels/cpu/cpu_attention_testing.h"

namespace distca {
namespace {

using kernels::Mask;
using kernels::Shape;
using kernels::testing::Variant;

constexpr int64_t kHeads = 2;

/// O and the gradients, [heads, tokens, dim]; LSE [heads, tokens].
struct Results {
  at::Tensor o, lse, dq, dk, dv;
};

struct Inputs {
  at::Tensor q, k, v, d_o;  // [heads, tokens, dim]
};

Inputs random_inputs(at::ScalarType type, int64_t tokens, int64_t dim, double spread,
                     uint64_t seed) {
  at::manual_seed(seed);
  const auto normal = [&](double deviation) {
    return at::randn({kHeads, tokens, dim}, at::kDouble).mul_(deviation).to(type);
  };
  return {normal(spread), normal(spread), normal(1), normal(1)};
}

/// By the formula, in double.
Results exact(const Inputs& in, double scale) {
  const int64_t tokens = in.q.size(1);
  const at::Tensor q = in.q.to(at::kDouble), k = in.k.to(at::kDouble), v = in.v.to(at::kDouble);
  const at::Tensor d_o = in.d_o.to(at::kDouble);
  const at::Tensor hidden = at::ones({tokens, tokens}, at::kBool).triu(1);
  const at::Tensor s = at::matmul(q, k.transpose(1, 2)).mul_(scale).masked_fill_(hidden, -INFINITY);
  Results r;
  r.lse = at::logsumexp(s, {2});
  const at::Tensor p = s.sub_(r.lse.unsqueeze(2)).exp_();
  r.o = at::matmul(p, v);
  r.dv = at::matmul(p.transpose(1, 2), d_o);
  const at::Tensor delta = (d_o * r.o).sum(2, /*keepdim=*/true);
  const at::Tensor ds = at::matmul(d_o, v.transpose(1, 2)).sub_(delta).mul_(p).mul_(scale);
  r.dq = at::matmul(ds, k);
  r.dk = at::matmul(ds.transpose(1, 2), q);
  return r;
}

Results aten(const Inputs& in, double scale) {
  const auto batch = [](const at::Tensor& x) { return x.unsqueeze(0); };
  const auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      batch(in.q), batch(in.k), batch(in.v), /*dropout_p=*/0.0, /*is_causal=*/true,
      /*attn_mask=*/std::nullopt, scale);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      batch(in.d_o), batch(in.q), batch(in.k), batch(in.v), o, lse, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*attn_mask=*/std::nullopt, scale);
  return {o[0], lse[0], dq[0], dk[0], dv[0]};
}

Results ours(const Variant& variant, const Inputs& in, double scale) {
  const int64_t tokens = in.q.size(1), dim = in.q.size(2);
  const Shape shape{.num_heads = kHeads,
                    .num_kv_heads = kHeads,
                    .head_dim_qk = dim,
                    .head_dim_v = dim,
                    .softmax_scale = scale};
  const auto rows = [](const at::Tensor& x) {
    return kernels::Rows{x.data_ptr(), x.stride(1), x.stride(0)};
  };
  const auto fp32 = in.q.options().dtype(at::kFloat);
  Results r{.o = at::empty_like(in.q), .lse = at::empty({kHeads, tokens}, fp32)};
  for (at::Tensor* gradient : {&r.dq, &r.dk, &r.dv}) {
    *gradient = at::zeros({kHeads, tokens, dim}, fp32);
  }
  const at::Tensor delta = at::empty({kHeads, tokens}, fp32);
  const kernels::TaskList list{.queries = {{.tokens = tokens,
                                            .q = rows(in.q),
                                            .o = rows(r.o),
                                            .lse = rows(r.lse),
                                            .d_o = rows(in.d_o),
                                            .delta = rows(delta),
                                            .dq = rows(r.dq)}},
                               .keys = {{.tokens = tokens,
                                         .k = rows(in.k),
                                         .v = rows(in.v),
                                         .dk = rows(r.dk),
                                         .dv = rows(r.dv)}},
                               .tasks = {{.q_tokens = tokens, .keys = {{.tokens = tokens}}}}};
  kernels::ThreadPool pool(1);
  kernels::cpu_forward(shape, variant.type, variant.type, list, pool, variant.isa);
  kernels::testing::row_delta({tokens, kHeads, dim}, variant.type, rows(in.d_o), rows(r.o),
                              rows(delta));
  kernels::cpu_backward(shape, variant.type, list, pool, variant.isa);
  return r;
}

/// Over several inputs: the largest error by the largest element, and the error's norm by the norm.
struct Errors {
  void add(const at::Tensor& actual, const at::Tensor& expected) {
    const at::Tensor error = actual.to(at::kDouble) - expected;
    most = std::max(most, (error.abs().max() / expected.abs().max()).item<double>());
    squares += error.square().sum().item<double>();
    norm += expected.square().sum().item<double>();
  }
  double l2() const { return std::sqrt(squares / norm); }

  double most = 0, squares = 0, norm = 0;
};

/// Ours and ATen's for one kind of result.
struct Comparison {
  Errors ours, atens;

  std::string line() const {
    return fmt::format("max {:.2e} (ATen's {:.2e}, x {:.2f}), L2 {:.2e} (ATen's {:.2e}, x {:.2f})",
                       ours.most, atens.most, ours.most / atens.most, ours.l2(), atens.l2(),
                       ours.l2() / atens.l2());
  }
};

/// Inputs in fp32 or bf16, for every instruction set of this machine. The largest error is that of
/// one element: it takes several inputs to compare it.
class CpuAgainstAtenTest : public ::testing::TestWithParam<ScalarType> {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  void expect_no_worse(int64_t tokens, int64_t dim, double spread, int seeds) const {
    const bool is_fp32 = GetParam() == ScalarType::kFloat32;
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    std::map<std::string, Comparison> errors;
    for (int seed = 1; seed <= seeds; ++seed) {
      const Inputs in =
          random_inputs(is_fp32 ? at::kFloat : at::kBFloat16, tokens, dim, spread, seed);
      const Results expected = exact(in, scale), b = aten(in, scale);
      for (const Variant& variant : kernels::testing::variants()) {
        if (variant.type != GetParam()) continue;
        const Results a = ours(variant, in, scale);
        for (const auto& [name, member] :
             {std::pair("O", &Results::o), std::pair("dQ", &Results::dq),
              std::pair("dK", &Results::dk), std::pair("dV", &Results::dv)}) {
          Comparison& comparison = errors[fmt::format("{} {}", isa_name(variant.isa), name)];
          comparison.ours.add(a.*member, expected.*member);
          comparison.atens.add(b.*member, expected.*member);
        }
      }
    }
    const double most = is_fp32 ? 2 : 1.25;
    for (const auto& [name, comparison] : errors) {
      SCOPED_TRACE(fmt::format("{}: {} tokens, head_dim {}, spread {}: {}", name, tokens, dim,
                               spread, comparison.line()));
      EXPECT_LE(comparison.ours.most, most * comparison.atens.most);
      EXPECT_LE(comparison.ours.l2(), most * comparison.atens.l2());
    }
  }
};

INSTANTIATE_TEST_SUITE_P(type, CpuAgainstAtenTest,
                         ::testing::Values(ScalarType::kFloat32, ScalarType::kBFloat16),
                         [](const auto& info) {
                           return info.param == ScalarType::kFloat32 ? "fp32" : "bf16";
                         });

TEST_P(CpuAgainstAtenTest, errors_are_like_atens_for_512_tokens) {
  for (const int64_t dim : {40, 64, 128}) expect_no_worse(512, dim, 1, 16);
}

TEST_P(CpuAgainstAtenTest, errors_are_like_atens_for_2048_tokens) {
  for (const int64_t dim : {64, 128}) expect_no_worse(2048, dim, 1, 4);
}

TEST_P(CpuAgainstAtenTest, errors_are_like_atens_for_large_logits) {
  for (const double spread : {4.0, 30.0}) expect_no_worse(512, 128, spread, 8);
}

}  // namespace
}  // namespace distca
