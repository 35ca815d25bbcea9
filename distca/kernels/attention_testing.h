#pragma once
// For tests of attention kernels: one document with random values, the same computed from whole
// matrices in double, and error bounds that follow from the number formats. No kernel's code is
// used for the expected values.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "distca/base/integers.h"
#include "distca/kernels/attention.h"
#include "distca/kernels/merge.h"
#include "distca/kernels/rows.h"

namespace distca::kernels::testing {

constexpr double kNoKey = -std::numeric_limits<double>::infinity();

/// Owned rows [tokens, heads, dim]; `gap` elements lie between the tokens' rows, as in a packed
/// QKV tensor. What was never written is NaN.
class Tensor {
 public:
  Tensor() = default;
  Tensor(ScalarType type, int64_t tokens, int64_t heads, int64_t dim, int64_t gap = 0)
      : type_(type), tokens_(tokens), heads_(heads), dim_(dim), stride_(heads * dim + gap) {
    bytes_.resize((tokens * stride_ + 1) * element_bytes(type), std::byte{0xFF});
  }

  Rows rows(int64_t token = 0) { return shifted({bytes_.data(), stride_, dim_}, type_, token, 0); }
  double at(int64_t token, int64_t head, int64_t i) const {
    double value = 0;
    read_row(element(i), type_, token, head, {&value, 1});
    return value;
  }
  void set(int64_t token, int64_t head, int64_t i, double value) {
    write_row(element(i), type_, token, head, {&value, 1});
  }
  void fill(const std::function<double()>& next) {
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t h = 0; h < heads_; ++h) {
        for (int64_t i = 0; i < dim_; ++i) set(t, h, i, next());
      }
    }
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t h = 0; h < heads_; ++h) {
        for (int64_t i = 0; i < dim_; ++i) all.push_back(at(t, h, i));
      }
    }
    return all;
  }
  int64_t tokens() const { return tokens_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  Rows element(int64_t i) const {
    return {const_cast<std::byte*>(bytes_.data()) + i * element_bytes(type_), stride_, dim_};
  }
  ScalarType type_ = ScalarType::kFloat64;
  int64_t tokens_ = 0, heads_ = 0, dim_ = 0, stride_ = 0;
  std::vector<std::byte> bytes_;
};

inline bool sees(const Mask& mask, int64_t i, int64_t j) {
  return (!mask.causal || j <= i) && (mask.window_left < 0 || j >= i - mask.window_left) &&
         (mask.window_right < 0 || j <= i + mask.window_right);
}

/// Queries at positions [q_position, q_position + q_tokens) of a document, keys at [0, k_tokens).
struct Case {
  ScalarType type = ScalarType::kFloat64;
  Shape shape{.num_heads = 4,
              .num_kv_heads = 2,
              .head_dim_qk = 16,
              .head_dim_v = 16,
              .softmax_scale = 0.25};
  int64_t q_position = 0;
  int64_t q_tokens = 0;
  int64_t k_tokens = 0;
  Mask mask{};
  std::vector<int64_t> key_cuts{};  // ascending positions at which the keys' ranges are cut
  std::vector<Range> no_keys{};     // ascending: positions whose keys no range holds
  int64_t gap = 0;
  double spread = 1;  // standard deviation of Q and K

  bool has_key(int64_t position) const {
    return std::none_of(no_keys.begin(), no_keys.end(), [&](const Range& gap) {
      return gap.contains({position, position + 1});
    });
  }
  /// Returns true if the query at position i may see the key at position j and a range holds that
  /// key.
  bool sees(int64_t i, int64_t j) const { return has_key(j) && testing::sees(mask, i, j); }
};

/// The case's inputs, outputs and gradients: one query buffer and one key buffer.
struct Document {
  explicit Document(const Case& c, uint64_t seed = 1) : spec(c) {
    const Shape& s = c.shape;
    const ScalarType acc = accumulator_type(c.type);
    const auto queries = [&](ScalarType type, int64_t dim) {
      return Tensor(type, c.q_tokens, s.num_heads, dim, c.gap);
    };
    const auto keys = [&](ScalarType type, int64_t dim) {
      return Tensor(type, c.k_tokens, s.num_kv_heads, dim, c.gap);
    };
    q = queries(c.type, s.head_dim_qk), d_o = queries(c.type, s.head_dim_v);
    o = queries(c.type, s.head_dim_v), dq = queries(acc, s.head_dim_qk);
    lse = queries(acc, 1), delta = queries(acc, 1);
    k = keys(c.type, s.head_dim_qk), v = keys(c.type, s.head_dim_v);
    dk = keys(acc, s.head_dim_qk), dv = keys(acc, s.head_dim_v);
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    q.fill([&] { return c.spread * normal(random); });
    k.fill([&] { return c.spread * normal(random); });
    v.fill([&] { return normal(random); });
    d_o.fill([&] { return normal(random); });
    for (Tensor* gradient : {&dq, &dk, &dv}) gradient->fill([] { return 0; });
  }

  /// Keys [keys.begin, keys.end).
  std::vector<KeyRange> key_ranges(const Range& keys) const {
    std::vector<int64_t> cuts = spec.key_cuts;
    for (const Range& gap : spec.no_keys) cuts.push_back(gap.begin), cuts.push_back(gap.end);
    std::sort(cuts.begin(), cuts.end());
    cuts.push_back(keys.end);
    std::vector<KeyRange> ranges;
    int64_t begin = keys.begin;
    for (const int64_t cut : cuts) {
      const int64_t end = std::clamp(cut, begin, keys.end);
      if (begin < end && spec.has_key(begin)) ranges.push_back({0, begin, end - begin, begin});
      begin = end;
    }
    return ranges;
  }
  /// The queries numbered [queries.begin, queries.end) against `keys`.
  Task task(const Range& queries, const Range& keys) const {
    return {.q_row = queries.begin,
            .q_tokens = queries.size(),
            .q_position = spec.q_position + queries.begin,
            .keys = key_ranges(keys),
            .mask = spec.mask};
  }
  TaskList list(std::vector<Task> tasks) {
    return {.queries = {{.tokens = spec.q_tokens,
                         .q = q.rows(),
                         .o = o.rows(),
                         .lse = lse.rows(),
                         .d_o = d_o.rows(),
                         .delta = delta.rows(),
                         .dq = dq.rows()}},
            .keys = {{.tokens = spec.k_tokens,
                      .k = k.rows(),
                      .v = v.rows(),
                      .dk = dk.rows(),
                      .dv = dv.rows()}},
            .tasks = std::move(tasks)};
  }
  TaskList list(const Range& queries, const Range& keys) { return list({task(queries, keys)}); }
  /// All queries against all keys.
  TaskList list() { return list(all_queries(), all_keys()); }
  Range all_queries() const { return {0, spec.q_tokens}; }
  Range all_keys() const { return {0, spec.k_tokens}; }

  Case spec;
  Tensor q, k, v, o, lse, d_o, delta, dq, dk, dv;
};

/// A tensor as computed from whole matrices, with the sum of the absolute values that went into
/// each element: a rounding of every term by a relative error r moves it by at most r x magnitude.
/// A term is a product: where one of its operands underflows, the element moves by at most the
/// smallest normal number x the others', which are at most `factor`.
struct Expected {
  std::vector<double> value;
  std::vector<double> magnitude;
  double factor = 1;  // a probability's
};

class WholeMatrix {
 public:
  explicit WholeMatrix(const Document& doc)
      : c_(doc.spec),
        q_(doc.q.values()),
        k_(doc.k.values()),
        v_(doc.v.values()),
        d_o_(doc.d_o.values()) {
    const int64_t rows = c_.q_tokens * c_.shape.num_heads;
    const int64_t keys = c_.k_tokens * c_.shape.num_kv_heads;
    const auto resize = [](Expected& x, int64_t n) { x.value.resize(n), x.magnitude.resize(n); };
    resize(o, rows * c_.shape.head_dim_v), resize(dq, rows * c_.shape.head_dim_qk);
    resize(lse, rows), resize(delta, rows);
    resize(dk, keys * c_.shape.head_dim_qk), resize(dv, keys * c_.shape.head_dim_v);
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<double> p = probabilities(row);
      for (int64_t j = 0; j < c_.k_tokens; ++j) {
        if (p[j] > 0) add_forward(row, j, p[j]);
      }
      for (int64_t x = 0; x < c_.shape.head_dim_v; ++x) {
        const int64_t i = row * c_.shape.head_dim_v + x;
        delta.value[row] += d_o_[i] * o.value[i];
      }
      for (int64_t j = 0; j < c_.k_tokens; ++j) {
        if (p[j] > 0) add_backward(row, j, p[j]);
      }
    }
  }

  Expected o, lse, delta, dq, dk, dv;
  double largest_score = 0;  // max over pairs of softmax_scale * sum |q| |k|

 private:
  /// Row = token * H + head; the row of the key that it reads at position j.
  int64_t key_row(int64_t row, int64_t j) const {
    const int64_t group = c_.shape.num_heads / c_.shape.num_kv_heads;
    return j * c_.shape.num_kv_heads + row % c_.shape.num_heads / group;
  }

  /// Returns the probabilities of a row's keys, 0 where the mask hides a key. Sets the row's LSE.
  std::vector<double> probabilities(int64_t row) {
    const int64_t d = c_.shape.head_dim_qk;
    std::vector<double> s(c_.k_tokens, kNoKey);
    for (int64_t j = 0; j < c_.k_tokens; ++j) {
      if (!c_.sees(c_.q_position + row / c_.shape.num_heads, j)) continue;
      double sum = 0, magnitude = 0;
      for (int64_t x = 0; x < d; ++x) {
        const double term = c_.shape.softmax_scale * q_[row * d + x] * k_[key_row(row, j) * d + x];
        sum += term, magnitude += std::fabs(term);
      }
      const double cap = c_.shape.softcap;
      s[j] = cap > 0 ? cap * std::tanh(sum / cap) : sum;
      largest_score = std::max(largest_score, magnitude);
    }
    const double max = s.empty() ? kNoKey : *std::max_element(s.begin(), s.end());
    double total = 0;
    for (double& x : s) total += x = max == kNoKey ? 0 : std::exp(x - max);
    for (double& x : s) x /= total > 0 ? total : 1;
    lse.value[row] = max + std::log(total);
    return s;
  }

  /// Returns the derivative of the capped score by the score.
  double cap_slope(int64_t row, int64_t j) const {
    if (c_.shape.softcap == 0) return 1;
    const int64_t d = c_.shape.head_dim_qk;
    double sum = 0;
    for (int64_t x = 0; x < d; ++x) sum += q_[row * d + x] * k_[key_row(row, j) * d + x];
    const double cosh = std::cosh(c_.shape.softmax_scale * sum / c_.shape.softcap);
    return 1 / (cosh * cosh);
  }

  /// Adds p x a x b, of which a is the sum of terms with the absolute values `magnitude`.
  static void add(Expected& x, int64_t i, double p, double a, double magnitude, double b) {
    x.value[i] += p * a * b, x.magnitude[i] += p * magnitude * std::fabs(b);
    x.factor = std::max({x.factor, magnitude, std::fabs(b), magnitude * std::fabs(b)});
  }

  void add_forward(int64_t row, int64_t j, double p) {
    const int64_t e = c_.shape.head_dim_v, key = key_row(row, j);
    for (int64_t x = 0; x < e; ++x) {
      add(o, row * e + x, p, 1, 1, v_[key * e + x]);
      add(dv, key * e + x, p, 1, 1, d_o_[row * e + x]);
    }
  }

  void add_backward(int64_t row, int64_t j, double p) {
    const int64_t d = c_.shape.head_dim_qk, e = c_.shape.head_dim_v, key = key_row(row, j);
    double dp = 0, magnitude = 0;
    for (int64_t x = 0; x < e; ++x) {
      const double term = d_o_[row * e + x] * v_[key * e + x];
      dp += term, magnitude += std::fabs(term);
    }
    const double ds = c_.shape.softmax_scale * cap_slope(row, j) * (dp - delta.value[row]);
    // Not x the slope: it is 1 - tanh^2, whose roundings are relative to the 1.
    magnitude = std::fabs(c_.shape.softmax_scale) * (magnitude + std::fabs(delta.value[row]));
    for (int64_t x = 0; x < d; ++x) {
      add(dq, row * d + x, p, ds, magnitude, k_[key * d + x]);
      add(dk, key * d + x, p, ds, magnitude, q_[row * d + x]);
    }
  }

  Case c_;
  std::vector<double> q_, k_, v_, d_o_;  // [tokens, heads, dim]
};

/// Unit roundoff: half the distance from 1 to the next number.
constexpr double unit_roundoff(ScalarType type) {
  return type == ScalarType::kFloat64 ? 0x1p-53 : type == ScalarType::kFloat32 ? 0x1p-24 : 0x1p-8;
}

/// Where roundings happen in a kernel.
struct Arithmetic {
  ScalarType sums = ScalarType::kFloat64;   // scores, exponentials, sums
  ScalarType store = ScalarType::kFloat64;  // probabilities, their gradients, results in memory
  int64_t store_roundings = 1;              // roundings of one result in the store type
  /// Roundings of one factor of a gradient's terms: dP - delta, delta, dS.
  int64_t gradient_roundings = 3;
  double exponential = 0;  // a probability's relative error beyond the sums' roundings
};

/// Relative errors (to Expected::magnitude) that the worst order of roundings cannot exceed.
struct Bounds {
  Bounds(const Case& c, const WholeMatrix& whole, const Arithmetic& arithmetic) {
    const double u = unit_roundoff(arithmetic.sums);
    const double store = unit_roundoff(arithmetic.store);
    const int64_t group = c.shape.num_heads / c.shape.num_kv_heads;
    const double terms = static_cast<double>(c.q_tokens * group + c.k_tokens);
    const double d = static_cast<double>(c.shape.head_dim_qk);
    const double dim = d + static_cast<double>(c.shape.head_dim_v);
    // exp multiplies by 1 + what its exponent is off by, in u x the largest score: D for the sum
    // and 4 for the scale, which ATen's path rounds and takes on both Q and K; 2 for the difference
    // to the largest score, which is twice as large at most; 2 for the factors under which the
    // largest rose. All this again for the sum that the probability is divided by; in backward
    // less: 1 for the LSE, 2 to change the base of exp. The logarithm that LSE has beyond a score
    // is rounded as often. Either exp is good to 20 ulp, as ATen's is; a sum of probabilities and
    // one of their products round each term once.
    const double exponent = 2 * (d + 8) * whole.largest_score + 3 * std::log(terms + 1);
    // Terms too small for the type may vanish, before or after a factor.
    underflow = 4 * terms * dim * (c.type == ScalarType::kFloat64 ? 0x1p-1022 : 0x1p-126);
    log_sum = u * (exponent + 2 * terms + 40) + arithmetic.exponential;
    // A probability is rounded too.
    forward = log_sum + (1 + static_cast<double>(arithmetic.store_roundings)) * store;
    const int64_t roundings = arithmetic.gradient_roundings + arithmetic.store_roundings;
    backward = log_sum + u * (dim + terms + 8) + static_cast<double>(roundings) * store;
    delta_roundoff = unit_roundoff(accumulator_type(c.type));
  }
  double forward, log_sum, backward, delta_roundoff, underflow;
};

inline void expect_close(const std::string& name, const std::vector<double>& actual,
                         const Expected& expected, double bound, double underflow) {
  ASSERT_EQ(actual.size(), expected.value.size()) << name;
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected.value[i]) continue;
    double error = std::fabs(actual[i] - expected.value[i]) /
                   (bound * expected.magnitude[i] + underflow * expected.factor);
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (error > worst) worst = error, where = i;
  }
  EXPECT_LE(worst, 1) << name << "[" << where << "] is " << (actual.empty() ? 0 : actual[where])
                      << ", should be " << (actual.empty() ? 0 : expected.value[where])
                      << ", bound " << bound;
}

/// LSE's errors are absolute.
inline void expect_forward(Document& doc, const WholeMatrix& whole, const Bounds& bounds) {
  expect_close("o", doc.o.values(), whole.o, bounds.forward, bounds.underflow);
  Expected lse = whole.lse;
  for (size_t i = 0; i < lse.value.size(); ++i) {
    lse.magnitude[i] = 1 + std::fabs(lse.value[i]) * bounds.delta_roundoff / bounds.log_sum;
  }
  expect_close("lse", doc.lse.values(), lse, bounds.log_sum, bounds.underflow);
}

inline void expect_backward(Document& doc, const WholeMatrix& whole, const Bounds& bounds) {
  expect_close("dq", doc.dq.values(), whole.dq, bounds.backward, bounds.underflow);
  expect_close("dk", doc.dk.values(), whole.dk, bounds.backward, bounds.underflow);
  expect_close("dv", doc.dv.values(), whole.dv, bounds.backward, bounds.underflow);
}

/// delta = rowsum(dO * O), with dO and O of `type`.
inline void row_delta(const RowShape& shape, ScalarType type, const Rows& d_o, const Rows& o,
                      const Rows& delta) {
  std::vector<double> d_o_row(shape.dim), o_row(shape.dim);
  for (int64_t token = 0; token < shape.tokens; ++token) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      read_row(d_o, type, token, head, d_o_row);
      read_row(o, type, token, head, o_row);
      double sum = 0;
      for (int64_t e = 0; e < shape.dim; ++e) sum += d_o_row[e] * o_row[e];
      write_row(delta, accumulator_type(type), token, head, {&sum, 1});
    }
  }
}

/// Sets the inputs of backward, which are the whole rows' LSE and delta, rounded to their type.
/// Sets the gradients to 0.
inline void set_backward_inputs(Document& doc, const WholeMatrix& whole) {
  size_t i = 0, j = 0;
  doc.lse.fill([&] { return whole.lse.value[i++]; });
  doc.delta.fill([&] { return whole.delta.value[j++]; });
  for (Tensor* gradient : {&doc.dq, &doc.dk, &doc.dv}) gradient->fill([] { return 0; });
}

}  // namespace distca::kernels::testing
