// Small integers for which fp32 and bf16 round nothing but the last division: every score is 0 and
// every probability 1, so one key too many or too few, in the wrong place or of the wrong head,
// changes a result at any length. And two keys, for which the exponential alone is rounded.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/cpu/cpu_attention_testing.h"

namespace distca::kernels {
namespace {

using testing::Case;
using testing::Document;
using testing::kNoKey;
using testing::Tensor;

constexpr double kScale = 0.25;

/// Q is 0 in the second half of the head, K in the first: q.k = 0, yet dQ and dK are not.
struct Integers : Document {
  explicit Integers(const Case& c) : Document(c) {
    std::mt19937_64 random(11);
    const auto up_to = [&](int64_t most) {
      return static_cast<double>(random() % (2 * most + 1)) - static_cast<double>(most);
    };
    const int64_t half = c.shape.head_dim_qk / 2;
    int64_t i = 0, j = 0;
    q.fill([&] { return i++ % (2 * half) < half ? up_to(1) : 0.0; });
    k.fill([&] { return j++ % (2 * half) < half ? 0.0 : up_to(1); });
    v.fill([&] { return up_to(2); });
    // Few of them, so that dP - delta stays below 256 and bf16 holds it.
    d_o.fill([&] { return random() % 8 == 0 ? up_to(1) : 0.0; });
    lse.fill([] { return 0; });  // given to backward: probabilities of exactly 1
    delta.fill([&] { return up_to(3); });
    for (Tensor* gradient : {&dq, &dk, &dv}) gradient->fill([&] { return up_to(5); });
    wide_o = Tensor(ScalarType::kFloat32, c.q_tokens, c.shape.num_heads, c.shape.head_dim_v, 8);
    wide_o.fill([] { return 7; });
    counted_lse = Tensor(ScalarType::kFloat32, c.q_tokens, c.shape.num_heads, 1);
  }

  Tensor wide_o, counted_lse;
};

/// The expected results, by counting. It starts from the gradients of an Integers on which no
/// kernel has worked yet.
struct Counted {
  explicit Counted(const Integers& doc)
      : k(doc.k.values()),
        v(doc.v.values()),
        dq(doc.dq.values()),
        dk(doc.dk.values()),
        dv(doc.dv.values()) {
    const Case& c = doc.spec;
    const int64_t heads = c.shape.num_heads, kv_heads = c.shape.num_kv_heads;
    const int64_t d = c.shape.head_dim_qk, e = c.shape.head_dim_v;
    const std::vector<double> q = doc.q.values(), d_o = doc.d_o.values();
    const std::vector<double> delta = doc.delta.values();
    o.assign(c.q_tokens * heads * e, 0), keys.assign(c.q_tokens, 0);
    for (int64_t i = 0; i < c.q_tokens; ++i) {
      for (int64_t j = 0; j < c.k_tokens; ++j) {
        if (!c.sees(c.q_position + i, j)) continue;
        ++keys[i];
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t row = i * heads + h, key = j * kv_heads + h / (heads / kv_heads);
          add(&o[row * e], 1, &v[key * e], e);
          add(&dv[key * e], 1, &d_o[row * e], e);
          double ds = -delta[row];
          for (int64_t x = 0; x < e; ++x) ds += d_o[row * e + x] * v[key * e + x];
          add(&dq[row * d], kScale * ds, &k[key * d], d);
          add(&dk[key * d], kScale * ds, &q[row * d], d);
        }
      }
    }
  }
  static void add(double* to, double factor, const double* from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
  }

  std::vector<double> k, v, o, dq, dk, dv;  // o: the sum, before the division
  std::vector<int64_t> keys;                // that a query sees
};

class CpuExactTest : public testing::CpuAttentionSuite {
 protected:
  Case small_case(int64_t tokens) const {
    Case c{.type = type(), .q_tokens = tokens, .k_tokens = tokens};
    c.shape.softmax_scale = kScale;
    return c;
  }

  /// Queries cut into tasks at multiples of `task_queries`, each with the keys up to its end where
  /// the mask is causal.
  void expect_counts(const Case& c, int64_t task_queries) const {
    SCOPED_TRACE(
        fmt::format("heads {}:{}, dims {} {}, queries {}+{}, keys {}, causal {}, window "
                    "{} {}, tasks of {}",
                    c.shape.num_heads, c.shape.num_kv_heads, c.shape.head_dim_qk,
                    c.shape.head_dim_v, c.q_position, c.q_tokens, c.k_tokens, c.mask.causal,
                    c.mask.window_left, c.mask.window_right, task_queries));
    Integers doc(c);
    const Counted counted(doc);
    std::vector<Task> tasks;
    for (int64_t begin = 0; begin < c.q_tokens; begin += task_queries) {
      const Range queries{begin, std::min(begin + task_queries, c.q_tokens)};
      const Range keys{
          0, c.mask.causal ? std::min(c.k_tokens, c.q_position + queries.end) : c.k_tokens};
      tasks.push_back(doc.task(queries, keys));
    }
    TaskList list = doc.list(std::move(tasks));
    const Rows given_lse = list.queries[0].lse;
    list.queries[0].o = doc.wide_o.rows(), list.queries[0].lse = doc.counted_lse.rows();
    forward(c.shape, list, 2, ScalarType::kFloat32);
    expect_means(doc, counted);
    list.queries[0].lse = given_lse;
    backward(c.shape, list);
    EXPECT_EQ(mismatch(doc.dq.values(), counted.dq), "");
    EXPECT_EQ(mismatch(doc.dk.values(), counted.dk), "");
    EXPECT_EQ(mismatch(doc.dv.values(), counted.dv), "");
  }

 private:
  static std::string mismatch(const std::vector<double>& actual,
                              const std::vector<double>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (actual[i] != expected[i]) {
        return fmt::format("element {} is {}, should be {}", i, actual[i], expected[i]);
      }
    }
    return "";
  }
  /// O is a quotient of exact integers, or a product with a rounded reciprocal.
  static void expect_means(const Integers& doc, const Counted& counted) {
    const int64_t heads = doc.spec.shape.num_heads, e = doc.spec.shape.head_dim_v;
    const std::vector<double> o = doc.wide_o.values(), lse = doc.counted_lse.values();
    for (size_t row = 0; row < lse.size(); ++row) {
      const int64_t n = counted.keys[row / heads];
      const double exact = n > 0 ? std::log(static_cast<double>(n)) : kNoKey;
      if (n > 0) {
        ASSERT_NEAR(lse[row], exact, 8 * 0x1p-24 * (1 + exact)) << "lse of row " << row;
      } else {
        ASSERT_EQ(lse[row], exact) << "lse of row " << row;
      }
      for (int64_t x = 0; x < e; ++x) {
        const double mean = n > 0 ? counted.o[row * e + x] / static_cast<double>(n) : 0;
        ASSERT_NEAR(o[row * e + x], mean, 2 * 0x1p-24 * std::fabs(mean)) << "o of row " << row;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(isa, CpuExactTest, ::testing::ValuesIn(testing::variants()),
                         ::testing::PrintToStringParamName());

TEST_P(CpuExactTest, counts_every_key_once_at_every_length) {
  for (const int64_t tokens : {1,  2,  3,  7,   8,   9,   15,  16,  17,  31,  32,  33,
                               63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513}) {
    expect_counts(small_case(tokens), tokens);
  }
}

TEST_P(CpuExactTest, counts_every_key_once_in_a_long_document) {
  Case c = small_case(testing::kFast ? 4097 : 1025);
  c.shape.num_heads = c.shape.num_kv_heads = 1;
  c.shape.head_dim_qk = c.shape.head_dim_v = 8;
  expect_counts(c, c.q_tokens);
}

TEST_P(CpuExactTest, counts_every_key_once_for_every_mask_cut_and_missing_key) {
  const std::vector<std::vector<Range>> missing = {
      {}, {{0, 1}, {64, 65}, {191, 193}}, {{10, 60}, {63, 128}, {129, 190}}, {{0, 200}}};
  for (const Mask& mask :
       {Mask{}, Mask{.causal = false}, Mask{.causal = true, .window_left = 0},
        Mask{.causal = true, .window_left = 63}, Mask{.causal = true, .window_left = 100},
        Mask{.causal = false, .window_right = 0}, Mask{.causal = false, .window_right = 64},
        Mask{.causal = false, .window_left = 31}, Mask{.causal = true, .window_right = 3},
        Mask{.causal = false, .window_left = 64, .window_right = 64}}) {
    for (const auto& no_keys : missing) {
      for (const int64_t q_position : {0, 61, 250}) {
        Case c = small_case(testing::kFast ? 150 : 70);
        c.q_position = q_position;
        c.k_tokens = 300;
        c.mask = mask;
        c.gap = 8;
        c.no_keys = no_keys;
        c.key_cuts = {5, 62, 63, 66, 127, 200, 299};
        expect_counts(c, 64);
      }
    }
  }
}

TEST_P(CpuExactTest, counts_every_key_once_for_every_head_grouping) {
  for (const int64_t group : {1, 2, 3, 4, 7, 8, 32, 33, 300}) {
    for (const int64_t kv_heads : {1, 2}) {
      Case c = small_case(group > 8 ? 40 : 200);
      c.q_position = 30;
      c.k_tokens = c.q_tokens + 30;
      c.shape.num_heads = group * kv_heads;
      c.shape.num_kv_heads = kv_heads;
      c.shape.head_dim_qk = c.shape.head_dim_v = 8;
      expect_counts(c, 128);
    }
  }
}

TEST_P(CpuExactTest, counts_every_key_once_for_every_head_dim) {
  for (int64_t dim = 8; dim <= 256; dim += 8) {
    Case c = small_case(97);
    c.shape.num_heads = 2, c.shape.num_kv_heads = 1;
    c.shape.head_dim_qk = dim;
    c.shape.head_dim_v = 264 - dim;
    expect_counts(c, 97);
    c.shape.head_dim_v = dim;
    expect_counts(c, 97);
  }
}

TEST_P(CpuExactTest, counts_every_key_once_with_a_softcap) {
  Case c = small_case(130);
  c.shape.softcap = 20;  // tanh(0) = 0, and its slope is 1
  expect_counts(c, 50);
}

TEST_P(CpuExactTest, the_largest_of_large_logits_takes_all) {
  // Key j has score -1e4, 0 or 1e4 by its place: exp(-1e4) is 0.
  for (const double score : {0.0, 1e4, -1e4}) {
    Case c = small_case(200);
    c.mask.causal = false;
    Document doc(c);
    const auto is_largest = [](int64_t j) { return j == 3 || j == 130; };
    doc.q.fill([] { return 32; });
    for (int64_t j = 0; j < 200; ++j) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t x = 0; x < 16; ++x) {
          // 16 x 32 x 80 x 0.25 = 10240
          doc.k.set(j, h, x, std::copysign(80.0, score) * (score != 0) - (is_largest(j) ? 0 : 80));
          doc.v.set(j, h, x, static_cast<double>(j % 61));
        }
      }
    }
    forward(c.shape, doc.list());
    const double largest = score > 0 ? 10240 : score < 0 ? -10240 : 0;
    for (const double lse : doc.lse.values()) {
      EXPECT_NEAR(lse, largest + std::log(2.0), 4 * 0x1p-24 * (1 + std::fabs(largest)));
    }
    for (const double o : doc.o.values()) EXPECT_EQ(o, (3 + 130 % 61) / 2.0);
  }
}

/// Scores are 0 and -x, with another x for each query; V is 0 and 1.
Document two_keys(ScalarType type, int64_t queries, int64_t dim) {
  Case c{.type = type, .q_tokens = queries, .k_tokens = 2, .mask = {.causal = false}};
  c.shape = {
      .num_heads = 1, .num_kv_heads = 1, .head_dim_qk = dim, .head_dim_v = dim, .softmax_scale = 1};
  Document doc(c);
  int64_t i = 0;
  doc.q.fill([&] {
    const int64_t element = i++;
    return element % dim == 0 ? 0.203 * static_cast<double>(element / dim) : 0;
  });
  int64_t j = 0;
  doc.k.fill([&] { return j++ == dim ? -1 : 0; });
  doc.v = doc.k;
  doc.v.set(1, 0, 0, 1);
  doc.d_o.fill([] { return 1; });
  return doc;
}

TEST_P(CpuExactTest, probabilities_are_as_good_as_an_fp32_exponential) {
  constexpr int64_t kQueries = 400;  // x to 80
  Document doc = two_keys(type(), kQueries, 8);
  Tensor o(ScalarType::kFloat32, kQueries, 1, 8);
  TaskList list = doc.list();
  list.queries[0].o = o.rows();
  forward(doc.spec.shape, list, 1, ScalarType::kFloat32);
  doc.delta.fill([] { return 0; });
  backward(doc.spec.shape, list, 1);
  const double u = 0x1p-24;
  const bool rounds = GetParam().rounds_operands();
  const double coarse = rounds ? 0x1p-13 : 0, rounded = rounds ? 0x1p-8 : 0;
  for (int64_t i = 0; i < kQueries; ++i) {
    const double x = doc.q.at(i, 0, 0), lse = doc.lse.at(i, 0, 0);
    SCOPED_TRACE(x);
    // An exponent is rounded by its product with log2(e) and by that constant's own rounding.
    const double p = std::exp(-x) / (1 + std::exp(-x));
    EXPECT_NEAR(o.at(i, 0, 0), p, p * (u * (2 * x + 12) + coarse + rounded));
    EXPECT_NEAR(lse, std::log1p(std::exp(-x)), std::exp(-x) * (u * (2 * x + 12) + coarse) + 4 * u);
    const double given = std::exp(-x - lse);
    EXPECT_NEAR(-doc.dq.at(i, 0, 0), given, given * (u * (3 * x + 12) + coarse + rounded));
  }
}

}  // namespace
}  // namespace distca::kernels
