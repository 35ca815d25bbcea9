#include "distca/runtime/aten_merge.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "distca/comm/aten_types.h"
#include "distca/kernels/merge.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {
namespace {

constexpr double kNoKey = -std::numeric_limits<double>::infinity();
constexpr int64_t kTokens = 5, kHeads = 3, kDim = 8;

/// O and LSE of some rows, and how kernels see them.
struct Tensors {
  at::Tensor o;
  at::Tensor lse;
  ScalarType o_type;

  Tensors(ScalarType type_of_o, ScalarType accumulator)
      : o(at::empty({kTokens, kHeads, kDim}, aten_type(type_of_o))),
        lse(at::empty({kTokens, kHeads, 1}, aten_type(accumulator))),
        o_type(type_of_o) {}
  kernels::Partial partial() const {
    return {.o = rows_of(o), .o_type = o_type, .lse = rows_of(lse)};
  }
};

std::vector<kernels::Partial> partials(const std::vector<Tensors>& parts) {
  std::vector<kernels::Partial> result;
  for (const Tensors& part : parts) result.push_back(part.partial());
  return result;
}

constexpr kernels::RowShape kShape{.tokens = kTokens, .heads = kHeads, .dim = kDim};
constexpr int kCpu = -1;

/// Row 0: no part has a key; row 1: only the last part has one; LSEs far apart in the others.
std::vector<Tensors> random_parts(size_t count, ScalarType o_type, ScalarType lse_type) {
  std::vector<Tensors> parts;
  for (size_t i = 0; i < count; ++i) {
    Tensors& part = parts.emplace_back(o_type, lse_type);
    part.o.normal_();
    part.lse.normal_().mul_(30);
    part.lse[0].fill_(kNoKey);
    if (i + 1 < count) part.lse[1].fill_(kNoKey);
    part.o.masked_fill_(part.lse == kNoKey, 0);
  }
  return parts;
}

TEST(AtenMerge, equals_the_kernels_merge) {
  at::manual_seed(3);
  for (const ScalarType type :
       {ScalarType::kFloat64, ScalarType::kFloat32, ScalarType::kBFloat16}) {
    const ScalarType accumulator = kernels::accumulator_type(type);
    for (const ScalarType o_type : {type, accumulator}) {
      for (const size_t count : {1, 2, 3, 7}) {
        const std::vector<Tensors> parts = random_parts(count, o_type, accumulator);
        const Tensors got(o_type, accumulator);
        const Tensors want(o_type, accumulator);
        aten_merge(kShape, type, partials(parts), got.partial(), kCpu);
        kernels::merge_partials(kShape, type, partials(parts), want.partial());
        // O is a mean of numbers below 6; each part's weight and product and each sum round once
        // in the accumulator (its LSE, at most 200, before the exponential), the result once more.
        const double u = accumulator == ScalarType::kFloat64 ? 0x1p-53 : 0x1p-24;
        const double store = o_type == ScalarType::kBFloat16 ? 0x1p-8 : u;
        const double bound = 6 * (u * (200 + 4.0 * static_cast<double>(count)) + 2 * store);
        EXPECT_LE((got.o.to(at::kDouble) - want.o.to(at::kDouble)).abs().max().item<double>(),
                  bound);
        EXPECT_TRUE(at::equal(got.lse == kNoKey, want.lse == kNoKey));
        EXPECT_TRUE(at::allclose(got.lse, want.lse, 8 * u, 8 * u)) << got.lse - want.lse;
        EXPECT_EQ(got.o[0].abs().max().item<double>(), 0);
        EXPECT_EQ(got.lse[0].max().item<double>(), kNoKey);
        EXPECT_TRUE(at::equal(got.o[1], parts.back().o[1])) << "one part with keys";
      }
    }
  }
}

TEST(AtenMerge, a_part_alone_keeps_its_bits) {
  at::manual_seed(4);
  const std::vector<Tensors> parts = random_parts(1, ScalarType::kFloat32, ScalarType::kFloat32);
  const Tensors result(ScalarType::kFloat32, ScalarType::kFloat32);
  aten_merge(kShape, ScalarType::kFloat32, partials(parts), result.partial(), kCpu);
  EXPECT_TRUE(at::equal(result.o, parts[0].o));
  EXPECT_TRUE(at::equal(result.lse, parts[0].lse));
}

}  // namespace
}  // namespace distca
