#include "distca/kernels/rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/integers.h"
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

void check_queries(int64_t tokens, int64_t position) {
  DISTCA_CHECK_GE(tokens, 0);
  DISTCA_CHECK_GE(position, 0);
}

void check_keys(const Shape& shape, std::span<const KeyFragment> keys) {
  std::vector<Range> ranges;
  for (const KeyFragment& fragment : keys) {
    DISTCA_CHECK_GE(fragment.tokens, 0);
    DISTCA_CHECK_GE(fragment.position, 0);
    check_rows(fragment.k, fragment.tokens, shape.num_kv_heads, shape.head_dim_qk, "k");
    check_rows(fragment.v, fragment.tokens, shape.num_kv_heads, shape.head_dim_v, "v");
    if (fragment.tokens > 0) {
      ranges.push_back({fragment.position, fragment.position + fragment.tokens});
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    DISTCA_CHECK(ranges[i - 1].end <= ranges[i].begin, "key fragments overlap at position {}",
                 ranges[i].begin);
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

void check_rows(const Rows& rows, int64_t tokens, int64_t heads, int64_t dim, const char* name) {
  if (tokens == 0) return;
  DISTCA_CHECK(rows.data != nullptr, "{} has {} tokens but no memory", name, tokens);
  DISTCA_CHECK(tokens == 1 || rows.token_stride >= dim, "{}: token_stride {} below dim {}", name,
               rows.token_stride, dim);
  DISTCA_CHECK(heads == 1 || rows.head_stride >= dim, "{}: head_stride {} below dim {}", name,
               rows.head_stride, dim);
}

void check_shape(const Shape& shape) {
  DISTCA_CHECK(shape.num_heads > 0 && shape.num_kv_heads > 0, "{} heads, {} kv heads",
               shape.num_heads, shape.num_kv_heads);
  DISTCA_CHECK(shape.num_heads % shape.num_kv_heads == 0, "{} heads, {} kv heads", shape.num_heads,
               shape.num_kv_heads);
  for (const int64_t dim : {shape.head_dim_qk, shape.head_dim_v}) {
    DISTCA_CHECK(dim > 0 && dim % 8 == 0, "head_dim {} is no multiple of 8", dim);
  }
  DISTCA_CHECK(std::isfinite(shape.softmax_scale), "softmax_scale {}", shape.softmax_scale);
  DISTCA_CHECK(shape.softcap >= 0 && std::isfinite(shape.softcap), "softcap {}: 0 or positive",
               shape.softcap);
}

void check_task(const Shape& shape, ScalarType type, ScalarType o_type, const ForwardTask& task) {
  DISTCA_CHECK(o_type == type || o_type == accumulator_type(type),
               "O is neither of the input type nor of the accumulator's");
  check_queries(task.q_tokens, task.q_position);
  check_rows(task.q, task.q_tokens, shape.num_heads, shape.head_dim_qk, "q");
  check_rows(task.o, task.q_tokens, shape.num_heads, shape.head_dim_v, "o");
  check_rows(number_rows(task.lse), task.q_tokens, shape.num_heads, 1, "lse");
  check_keys(shape, task.keys);
}

void check_task(const Shape& shape, ScalarType type, const BackwardTask& task) {
  check_queries(task.q_tokens, task.q_position);
  check_rows(task.q, task.q_tokens, shape.num_heads, shape.head_dim_qk, "q");
  check_rows(task.dq, task.q_tokens, shape.num_heads, shape.head_dim_qk, "dq");
  check_rows(task.d_o, task.q_tokens, shape.num_heads, shape.head_dim_v, "d_o");
  check_rows(number_rows(task.lse), task.q_tokens, shape.num_heads, 1, "lse");
  check_rows(number_rows(task.delta), task.q_tokens, shape.num_heads, 1, "delta");
  check_keys(shape, task.keys);
  DISTCA_CHECK_EQ(task.key_gradients.size(), task.keys.size());
  for (size_t i = 0; i < task.keys.size(); ++i) {
    const int64_t tokens = task.keys[i].tokens;
    check_rows(task.key_gradients[i].dk, tokens, shape.num_kv_heads, shape.head_dim_qk, "dk");
    check_rows(task.key_gradients[i].dv, tokens, shape.num_kv_heads, shape.head_dim_v, "dv");
  }
}

}  // namespace distca::kernels
