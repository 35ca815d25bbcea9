#pragma once
// Reading and writing Rows of any scalar type in double. Thread rule: no state.

#include <cstddef>
#include <cstdint>
#include <span>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// Type of LSE, delta and accumulated gradients for inputs of `type`.
constexpr ScalarType accumulator_type(ScalarType type) {
  return type == ScalarType::kFloat64 ? ScalarType::kFloat64 : ScalarType::kFloat32;
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

}  // namespace distca::kernels
