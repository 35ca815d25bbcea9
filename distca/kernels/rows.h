#pragma once
// Reads and writes Rows (kernels/attention.h) of any number type in double. Thread rule: no shared
// state.

#include <cstddef>
#include <cstdint>
#include <span>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// The type of LSE, delta and accumulated gradients for inputs of `type`.
constexpr ScalarType accumulator_type(ScalarType type) {
  return type == ScalarType::kFloat64 ? ScalarType::kFloat64 : ScalarType::kFloat32;
}

/// Returns `rows` counted from `token` and `head` on.
inline Rows shifted(Rows rows, ScalarType type, int64_t token, int64_t head) {
  rows.data = static_cast<std::byte*>(rows.data) +
              (token * rows.token_stride + head * rows.head_stride) * element_bytes(type);
  return rows;
}

/// Read, write or add to one row: the values.size() numbers of `token` and `head`.
void read_row(const Rows& rows, ScalarType type, int64_t token, int64_t head,
              std::span<double> values);
/// LSE or delta of a row; `type`: of the inputs.
inline double read_number(const Rows& rows, ScalarType type, int64_t token, int64_t head) {
  double value = 0;
  read_row(rows, accumulator_type(type), token, head, {&value, 1});
  return value;
}
void write_row(const Rows& rows, ScalarType type, int64_t token, int64_t head,
               std::span<const double> values);
void add_to_row(const Rows& rows, ScalarType type, int64_t token, int64_t head,
                std::span<const double> values);

}  // namespace distca::kernels
