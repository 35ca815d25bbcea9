#include "distca/kernels/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "distca/base/error.h"
#include "distca/kernels/rows.h"

namespace distca::kernels {
namespace {

/// Present if there are tokens, and wide enough that rows do not overlap their neighbours.
void check(const RowShape& shape, const Rows& rows, int64_t dim, const char* name) {
  if (shape.tokens == 0) return;
  DISTCA_CHECK(rows.data != nullptr, "{} has {} tokens but no memory", name, shape.tokens);
  DISTCA_CHECK(shape.tokens == 1 || rows.token_stride >= dim, "{}: token_stride {} below dim {}",
               name, rows.token_stride, dim);
  DISTCA_CHECK(shape.heads == 1 || rows.head_stride >= dim, "{}: head_stride {} below dim {}", name,
               rows.head_stride, dim);
}

template <typename Body>
void for_each_row(const RowShape& shape, Body body) {
  for (int64_t token = 0; token < shape.tokens; ++token) {
    for (int64_t head = 0; head < shape.heads; ++head) body(token, head);
  }
}

}  // namespace

void merge_partials(const RowShape& shape, ScalarType type, std::span<const Partial> parts,
                    const Partial& result) {
  for (const Partial& part : parts) {
    check(shape, part.o, shape.dim, "partial o");
    check(shape, part.lse, 1, "partial lse");
  }
  check(shape, result.o, shape.dim, "merged o");
  check(shape, result.lse, 1, "merged lse");
  constexpr double kNoKey = -std::numeric_limits<double>::infinity();
  std::vector<double> lse(parts.size());
  std::vector<double> row(shape.dim);
  std::vector<double> sum(shape.dim);
  for_each_row(shape, [&](int64_t token, int64_t head) {
    double max = kNoKey;
    for (size_t i = 0; i < parts.size(); ++i) {
      lse[i] = read_number(parts[i].lse, type, token, head);
      max = std::max(max, lse[i]);
    }
    double total = 0;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (lse[i] == kNoKey) continue;
      const double weight = std::exp(lse[i] - max);
      total += weight;
      read_row(parts[i].o, parts[i].o_type, token, head, row);
      for (int64_t e = 0; e < shape.dim; ++e) sum[e] += weight * row[e];
    }
    if (total > 0) {
      for (double& value : sum) value /= total;
    }
    write_row(result.o, result.o_type, token, head, sum);
    const double whole = total > 0 ? max + std::log(total) : kNoKey;
    write_row(result.lse, accumulator_type(type), token, head, {&whole, 1});
  });
}

void output_from_delta(const RowShape& shape, ScalarType type, const Rows& d_o, const Rows& delta,
                       const Rows& o) {
  check(shape, d_o, shape.dim, "d_o");
  check(shape, o, shape.dim, "o");
  check(shape, delta, 1, "delta");
  std::vector<double> row(shape.dim);
  for_each_row(shape, [&](int64_t token, int64_t head) {
    read_row(d_o, type, token, head, row);
    // Squares of fp32 fit into double; rows of double are scaled by their largest element.
    double scale = 1;
    if (type == ScalarType::kFloat64) {
      double largest = 0;
      for (const double value : row) largest = std::max(largest, std::fabs(value));
      scale = largest > 0 ? 1 / largest : 0;
    }
    double norm = 0;
    for (double& value : row) {
      value *= scale;
      norm += value * value;
    }
    const double factor = norm > 0 ? read_number(delta, type, token, head) * scale / norm : 0;
    for (double& value : row) value *= factor;
    write_row(o, type, token, head, row);
  });
}

}  // namespace distca::kernels
