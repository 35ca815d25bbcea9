#pragma once
// Functions that go with attention, row by row: merging partial results that each used a part of
// the keys (split-KV), and an O for kernels that ask for it instead of delta.
//
// Rows are [tokens, heads, dim]. LSE and delta are [tokens, heads, 1], fp64 for fp64 inputs and
// fp32 otherwise (accumulator_type). All arithmetic is in double. `type` is that of attention's
// inputs. A wrong shape is a CHECK. Thread rule: calls whose outputs are disjoint may run at the
// same time.

#include <cstdint>
#include <span>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// The size of O.
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

/// Computes lse = log sum_i exp(lse_i) and o = sum_i exp(lse_i - lse) o_i over the parts. A row
/// that has no key in any part gets O = 0 and LSE = -infinity. `result` may be one of `parts`.
void merge_partials(const RowShape& shape, ScalarType type, std::span<const Partial> parts,
                    const Partial& result);

/// Computes an O whose row sum with dO is delta, for kernels that ask for O and not for delta. It
/// is dO * delta / |dO|^2, and 0 where |dO| is 0. The square neither overflows nor becomes 0,
/// however large or small dO is.
void output_from_delta(const RowShape& shape, ScalarType type, const Rows& d_o, const Rows& delta,
                       const Rows& o);

}  // namespace distca::kernels
