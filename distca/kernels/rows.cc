#include "distca/kernels/rows.h"

#include "distca/kernels/bfloat16.h"

namespace distca::kernels {
namespace {

void store(double* to, double x) { *to = x; }
void store(float* to, double x) { *to = static_cast<float>(x); }
void store(BFloat16* to, double x) { *to = to_bfloat16(x); }
double load(double x) { return x; }
double load(float x) { return x; }
double load(BFloat16 x) { return to_float(x); }

/// Calls `body` with the row as T*, T the storage type of `type`.
template <typename Body>
void with_row(const Rows& rows, ScalarType type, int64_t token, int64_t head, Body body) {
  const int64_t offset = token * rows.token_stride + head * rows.head_stride;
  switch (type) {
    case ScalarType::kFloat64:
      return body(static_cast<double*>(rows.data) + offset);
    case ScalarType::kFloat32:
      return body(static_cast<float*>(rows.data) + offset);
    case ScalarType::kBFloat16:
      return body(static_cast<BFloat16*>(rows.data) + offset);
  }
}

}  // namespace

void read_row(const Rows& rows, ScalarType type, int64_t token, int64_t head,
              std::span<double> values) {
  with_row(rows, type, token, head, [&](const auto* row) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = load(row[i]);
  });
}

void write_row(const Rows& rows, ScalarType type, int64_t token, int64_t head,
               std::span<const double> values) {
  with_row(rows, type, token, head, [&](auto* row) {
    for (size_t i = 0; i < values.size(); ++i) store(row + i, values[i]);
  });
}

void add_to_row(const Rows& rows, ScalarType type, int64_t token, int64_t head,
                std::span<const double> values) {
  with_row(rows, type, token, head, [&](auto* row) {
    for (size_t i = 0; i < values.size(); ++i) store(row + i, load(row[i]) + values[i]);
  });
}

}  // namespace distca::kernels
