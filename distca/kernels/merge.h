#pragma once
// Row-wise companions of attention: merging partial results over parts of the keys (split-KV), and
// delta.
//
// Rows are [tokens, heads, dim]; LSE and delta are [tokens, heads, 1], fp64 for fp64 inputs, else
// fp32 (accumulator_type). Arithmetic in double. Broken shapes are a CHECK. Thread rule: calls on
// disjoint outputs may run at the same time.

#include <cstdint>
#include <span>

#include "distca/kernels/attention.h"

namespace distca::kernels {

struct RowShape {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t dim = 0;  // head_dim_v
};

/// O and LSE of some queries over a part of their keys.
struct Partial {
  Rows o;
  ScalarType o_type = ScalarType::kFloat32;
  Rows lse;
};

/// lse = log sum_i exp(lse_i), o = sum_i exp(lse_i - lse) o_i; a row without any key stays O = 0,
/// LSE = -infinity. `type` is the type of the inputs of attention. `result` may be one of `parts`.
void merge_partials(const RowShape& shape, ScalarType type, std::span<const Partial> parts,
                    const Partial& result);

/// delta = rowsum(dO * O), with dO and O of `type`.
void row_delta(const RowShape& shape, ScalarType type, const Rows& d_o, const Rows& o,
               const Rows& delta);

/// An O whose row sum with dO is delta, for kernels that ask for O: dO * delta / |dO|^2; 0 where
/// |dO| is 0. The square neither overflows nor vanishes, however large or small dO is.
void output_from_delta(const RowShape& shape, ScalarType type, const Rows& d_o, const Rows& delta,
                       const Rows& o);

}  // namespace distca::kernels
