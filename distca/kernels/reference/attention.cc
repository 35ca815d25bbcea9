#include "distca/kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "distca/base/integers.h"
#include "distca/kernels/mask_blocks.h"
#include "distca/kernels/rows.h"

namespace distca::kernels {
namespace {

constexpr double kNoKey = -std::numeric_limits<double>::infinity();

double dot(const double* a, const double* b, int64_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}

void add_scaled(double* to, double factor, const double* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

/// A task's keys of one head, whatever their fragments, in ascending position.
struct HeadKeys {
  struct Origin {
    int64_t position;
    size_t fragment;
    int64_t token;  // in the fragment
  };
  std::vector<Origin> origins;
  std::vector<double> k;  // [keys, D]
  std::vector<double> v;  // [keys, E]
};

HeadKeys read_keys(const Shape& shape, ScalarType type, std::span<const KeyFragment> fragments,
                   int64_t kv_head) {
  HeadKeys keys;
  for (size_t f = 0; f < fragments.size(); ++f) {
    for (int64_t t = 0; t < fragments[f].tokens; ++t) {
      keys.origins.push_back({fragments[f].position + t, f, t});
    }
  }
  std::sort(keys.origins.begin(), keys.origins.end(),
            [](const auto& a, const auto& b) { return a.position < b.position; });
  const int64_t d = shape.head_dim_qk;
  const int64_t e = shape.head_dim_v;
  keys.k.resize(keys.origins.size() * d);
  keys.v.resize(keys.origins.size() * e);
  for (size_t j = 0; j < keys.origins.size(); ++j) {
    const auto& [position, f, token] = keys.origins[j];
    read_row(fragments[f].k, type, token, kv_head, std::span(keys.k).subspan(j * d, d));
    read_row(fragments[f].v, type, token, kv_head, std::span(keys.v).subspan(j * e, e));
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

double read_number(const Rows& rows, ScalarType type, int64_t token, int64_t head) {
  double value = 0;
  read_row(number_rows(rows), accumulator_type(type), token, head, {&value, 1});
  return value;
}

void forward_row(const Shape& shape, ScalarType type, ScalarType o_type, const ForwardTask& task,
                 const HeadKeys& keys, int64_t token, int64_t head) {
  const int64_t d = shape.head_dim_qk;
  const int64_t e = shape.head_dim_v;
  std::vector<double> q(d);
  read_row(task.q, type, token, head, q);
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
  write_row(task.o, o_type, token, head, o);
  write_row(number_rows(task.lse), accumulator_type(type), token, head, {&lse, 1});
}

/// `dk`, `dv`: as HeadKeys' k and v.
void backward_row(const Shape& shape, ScalarType type, const BackwardTask& task,
                  const HeadKeys& keys, int64_t token, int64_t head, std::vector<double>& dk,
                  std::vector<double>& dv) {
  const double lse = read_number(task.lse, type, token, head);
  if (lse == kNoKey) return;
  const double delta = read_number(task.delta, type, token, head);
  const int64_t d = shape.head_dim_qk;
  const int64_t e = shape.head_dim_v;
  std::vector<double> q(d);
  std::vector<double> d_o(e);
  std::vector<double> dq(d, 0.0);
  read_row(task.q, type, token, head, q);
  read_row(task.d_o, type, token, head, d_o);
  for_visible(keys, task.mask, task.q_position + token, [&](size_t j) {
    const double score = capped(shape, shape.softmax_scale * dot(q.data(), &keys.k[j * d], d));
    const double p = std::exp(score - lse);
    const double dp = dot(d_o.data(), &keys.v[j * e], e);
    const double ds = shape.softmax_scale * cap_slope(shape, score) * p * (dp - delta);
    add_scaled(dq.data(), ds, &keys.k[j * d], d);
    add_scaled(&dk[j * d], ds, q.data(), d);
    add_scaled(&dv[j * e], p, d_o.data(), e);
  });
  add_to_row(task.dq, accumulator_type(type), token, head, dq);
}

}  // namespace

void reference_forward(const Shape& shape, ScalarType type, ScalarType o_type,
                       std::span<const ForwardTask> tasks) {
  check_shape(shape);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  for (const ForwardTask& task : tasks) {
    check_task(shape, type, o_type, task);
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      const HeadKeys keys = read_keys(shape, type, task.keys, kv_head);
      for (int64_t token = 0; token < task.q_tokens; ++token) {
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          forward_row(shape, type, o_type, task, keys, token, head);
        }
      }
    }
  }
}

void reference_backward(const Shape& shape, ScalarType type, std::span<const BackwardTask> tasks) {
  check_shape(shape);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const int64_t d = shape.head_dim_qk;
  const int64_t e = shape.head_dim_v;
  for (const BackwardTask& task : tasks) {
    check_task(shape, type, task);
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      const HeadKeys keys = read_keys(shape, type, task.keys, kv_head);
      std::vector<double> dk(keys.k.size(), 0.0);
      std::vector<double> dv(keys.v.size(), 0.0);
      for (int64_t token = 0; token < task.q_tokens; ++token) {
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          backward_row(shape, type, task, keys, token, head, dk, dv);
        }
      }
      for (size_t j = 0; j < keys.origins.size(); ++j) {
        const auto& origin = keys.origins[j];
        const KeyGradient& gradient = task.key_gradients[origin.fragment];
        add_to_row(gradient.dk, accumulator_type(type), origin.token, kv_head,
                   std::span(dk).subspan(j * d, d));
        add_to_row(gradient.dv, accumulator_type(type), origin.token, kv_head,
                   std::span(dv).subspan(j * e, e));
      }
    }
  }
}

}  // namespace distca::kernels
