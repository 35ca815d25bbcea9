#pragma once
// Reading and writing Rows of any scalar type in double, and the checks every kernel makes first.
// The checks are CHECKs: a broken shape is our own fault. Thread rule: no state.

#include <cstddef>
#include <cstdint>
#include <span>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// Type of LSE, delta and accumulated gradients for inputs of `type`.
constexpr ScalarType accumulator_type(ScalarType type) {
  return type == ScalarType::kFloat64 ? ScalarType::kFloat64 : ScalarType::kFloat32;
}

/// Rows of one number per token and head (LSE, delta): a head_stride that was not set is 1.
constexpr Rows number_rows(Rows rows) {
  if (rows.head_stride == 0) rows.head_stride = 1;
  return rows;
}

/// The same rows seen from `token`, `head` on.
inline Rows shifted(Rows rows, ScalarType type, int64_t token, int64_t head) {
  rows.data = static_cast<std::byte*>(rows.data) +
              (token * rows.token_stride + head * rows.head_stride) * element_bytes(type);
  return rows;
}

/// One row: the `values.size()` numbers of `token`, `head`.
void read_row(const Rows& rows, ScalarType type, int64_t token, int64_t head,
              std::span<double> values);
void write_row(const Rows& rows, ScalarType type, int64_t token, int64_t head,
               std::span<const double> values);
void add_to_row(const Rows& rows, ScalarType type, int64_t token, int64_t head,
                std::span<const double> values);

/// Present if there are tokens, and wide enough that rows do not overlap their neighbours.
void check_rows(const Rows& rows, int64_t tokens, int64_t heads, int64_t dim, const char* name);
void check_shape(const Shape& shape);
/// `o_type`: the type of O, the input type or (partial results) the accumulator type.
void check_task(const Shape& shape, ScalarType type, ScalarType o_type, const ForwardTask& task);
void check_task(const Shape& shape, ScalarType type, const BackwardTask& task);

}  // namespace distca::kernels
