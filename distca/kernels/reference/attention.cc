#include "distca/kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "distca/base/integers.h"
#include "distca/kernels/mask_parts.h"
#include "distca/kernels/rows.h"
#include "distca/kernels/task_list.h"

namespace distca::kernels {
namespace {

constexpr double kNoKey = -std::numeric_limits<double>::infinity();

double dot(const double* a, const double* b, int64_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}

void add_scaled(double* to, double factor, const double* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

/// A task's keys of one head, whatever their buffers.
struct HeadKeys {
  struct Origin {
    int64_t position;
    int64_t buffer;
    int64_t row;
  };
  std::vector<Origin> origins;
  std::vector<double> k;  // [keys, D]
  std::vector<double> v;  // [keys, E]
};

HeadKeys read_keys(const Shape& shape, ScalarType type, const TaskList& list, const Task& task,
                   int64_t kv_head) {
  HeadKeys keys;
  for (const KeyRange& range : task.keys) {
    for (int64_t t = 0; t < range.tokens; ++t) {
      keys.origins.push_back({range.position + t, range.buffer, range.row + t});
    }
  }
  const int64_t d = shape.head_dim_qk;
  const int64_t e = shape.head_dim_v;
  keys.k.resize(keys.origins.size() * d);
  keys.v.resize(keys.origins.size() * e);
  for (size_t j = 0; j < keys.origins.size(); ++j) {
    const auto& [position, buffer, row] = keys.origins[j];
    read_row(list.keys[buffer].k, type, row, kv_head, std::span(keys.k).subspan(j * d, d));
    read_row(list.keys[buffer].v, type, row, kv_head, std::span(keys.v).subspan(j * e, e));
  }
  return keys;
}

/// Calls `body(j)` for the keys that the query may see, in ascending position.
template <typename Body>
void for_visible(const HeadKeys& keys, const Mask& mask, int64_t query, Body body) {
  for (size_t j = 0; j < keys.origins.size(); ++j) {
    const int64_t position = keys.origins[j].position;
    if (!visible_keys(mask, query, {position, position + 1}).empty()) body(j);
  }
}

double capped(const Shape& shape, double score) {
  return shape.softcap > 0 ? shape.softcap * std::tanh(score / shape.softcap) : score;
}

/// By how much the capped score grows with the score.
double cap_slope(const Shape& shape, double capped_score) {
  if (shape.softcap == 0) return 1;
  const double t = capped_score / shape.softcap;
  return 1 - t * t;
}

void forward_row(const Shape& shape, ScalarType type, ScalarType o_type, const QueryBuffer& buffer,
                 const Task& task, const HeadKeys& keys, int64_t token, int64_t head) {
  const int64_t row = task.q_row + token;
  const int64_t d = shape.head_dim_qk;
  const int64_t e = shape.head_dim_v;
  std::vector<double> q(d);
  read_row(buffer.q, type, row, head, q);
  std::vector<double> score(keys.origins.size());
  double max = kNoKey;
  const int64_t query = task.q_position + token;
  for_visible(keys, task.mask, query, [&](size_t j) {
    score[j] = capped(shape, shape.softmax_scale * dot(q.data(), &keys.k[j * d], d));
    max = std::max(max, score[j]);
  });
  double sum = 0;
  std::vector<double> o(e, 0.0);
  for_visible(keys, task.mask, query, [&](size_t j) {
    const double p = std::exp(score[j] - max);
    sum += p;
    add_scaled(o.data(), p, &keys.v[j * e], e);
  });
  if (sum > 0) {
    for (double& value : o) value /= sum;
  }
  const double lse = sum > 0 ? max + std::log(sum) : kNoKey;
  write_row(buffer.o, o_type, row, head, o);
  write_row(buffer.lse, accumulator_type(type), row, head, {&lse, 1});
}

/// `dk`, `dv`: as HeadKeys' k and v.
void backward_row(const Shape& shape, ScalarType type, const QueryBuffer& buffer, const Task& task,
                  const HeadKeys& keys, int64_t token, int64_t head, std::vector<double>& dk,
                  std::vector<double>& dv) {
  const int64_t row = task.q_row + token;
  const double lse = read_number(buffer.lse, type, row, head);
  if (lse == kNoKey) return;
  const double delta = read_number(buffer.delta, type, row, head);
  const int64_t d = shape.head_dim_qk;
  const int64_t e = shape.head_dim_v;
  std::vector<double> q(d);
  std::vector<double> d_o(e);
  std::vector<double> dq(d, 0.0);
  read_row(buffer.q, type, row, head, q);
  read_row(buffer.d_o, type, row, head, d_o);
  for_visible(keys, task.mask, task.q_position + token, [&](size_t j) {
    const double score = capped(shape, shape.softmax_scale * dot(q.data(), &keys.k[j * d], d));
    const double p = std::exp(score - lse);
    const double dp = dot(d_o.data(), &keys.v[j * e], e);
    const double ds = shape.softmax_scale * cap_slope(shape, score) * p * (dp - delta);
    add_scaled(dq.data(), ds, &keys.k[j * d], d);
    add_scaled(&dk[j * d], ds, q.data(), d);
    add_scaled(&dv[j * e], p, d_o.data(), e);
  });
  add_to_row(buffer.dq, accumulator_type(type), row, head, dq);
}

}  // namespace

void reference_forward(const Shape& shape, ScalarType type, ScalarType o_type,
                       const TaskList& list) {
  check_forward(shape, type, o_type, list);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  for (const Task& task : list.tasks) {
    const QueryBuffer& buffer = list.queries[task.query_buffer];
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      const HeadKeys keys = read_keys(shape, type, list, task, kv_head);
      for (int64_t token = 0; token < task.q_tokens; ++token) {
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          forward_row(shape, type, o_type, buffer, task, keys, token, head);
        }
      }
    }
  }
}

void reference_backward(const Shape& shape, ScalarType type, const TaskList& list) {
  check_backward(shape, list);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const int64_t d = shape.head_dim_qk;
  const int64_t e = shape.head_dim_v;
  for (const Task& task : list.tasks) {
    const QueryBuffer& buffer = list.queries[task.query_buffer];
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      const HeadKeys keys = read_keys(shape, type, list, task, kv_head);
      std::vector<double> dk(keys.k.size(), 0.0);
      std::vector<double> dv(keys.v.size(), 0.0);
      for (int64_t token = 0; token < task.q_tokens; ++token) {
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          backward_row(shape, type, buffer, task, keys, token, head, dk, dv);
        }
      }
      for (size_t j = 0; j < keys.origins.size(); ++j) {
        const auto& [position, key_buffer, row] = keys.origins[j];
        const KeyBuffer& to = list.keys[key_buffer];
        add_to_row(to.dk, accumulator_type(type), row, kv_head, std::span(dk).subspan(j * d, d));
        add_to_row(to.dv, accumulator_type(type), row, kv_head, std::span(dv).subspan(j * e, e));
      }
    }
  }
}

}  // namespace distca::kernels
