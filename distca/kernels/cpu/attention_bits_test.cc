// Bit for bit: O and LSE do not depend on how queries were cut into tasks and keys into ranges,
// nor on the threads; gradients do not depend on the threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/cpu/cpu_attention_testing.h"
#include "distca/kernels/cpu/engine.h"

namespace distca::kernels {
namespace {

using testing::Case;
using testing::Document;
using testing::Tensor;

class CpuBitsTest : public testing::CpuAttentionSuite {
 protected:
  Case small_case(int64_t tokens) const {
    return {.type = type(), .q_tokens = tokens, .k_tokens = tokens};
  }

  void forward_uncut(Document& doc, std::optional<ScalarType> o_type = std::nullopt) const {
    forward(doc.spec.shape, doc.list(), 1, o_type);
  }

  /// Cuts queries at multiples of `unit` into 1 to 16 tasks in any order, keys anywhere into
  /// ranges, other ones for every task; each has the keys it needs, or more.
  static TaskList random_tasks(std::mt19937_64& random, Document& doc, int64_t unit) {
    const Case& c = doc.spec;
    std::vector<Range> pieces = testing::random_cuts(random, doc.all_queries(),
                                                     1 + static_cast<int64_t>(random() % 16), unit);
    std::shuffle(pieces.begin(), pieces.end(), random);
    std::vector<Task> tasks;
    for (const Range& queries : pieces) {
      doc.spec.key_cuts.clear();
      for (const Range& cut : testing::random_cuts(random, doc.all_keys(), 9, 1)) {
        doc.spec.key_cuts.push_back(cut.begin);
      }
      const bool only_needed = c.mask.causal && random() % 2 == 0;
      tasks.push_back(doc.task(queries, {0, only_needed ? queries.end : c.k_tokens}));
    }
    return doc.list(std::move(tasks));
  }
  void forward_cut(Document& doc, uint64_t seed, int64_t unit,
                   std::optional<ScalarType> o_type = std::nullopt) const {
    std::mt19937_64 random(seed);
    const TaskList list = random_tasks(random, doc, unit);
    forward(doc.spec.shape, list, 1 + static_cast<int>(random() % 4), o_type);
  }
  void backward_cut(Document& doc, uint64_t seed, int64_t unit) const {
    std::mt19937_64 random(seed);
    const TaskList list = random_tasks(random, doc, unit);
    backward(doc.spec.shape, list, 1 + static_cast<int>(random() % 4));
  }

  void expect_bits_of_the_uncut_run(const Case& c, int runs, int64_t unit) const {
    Document uncut(c), cut(c);
    forward_uncut(uncut);
    expect_bits_of(uncut, cut, runs, unit);
  }
  void expect_bits_of(const Document& uncut, Document& cut, int runs, int64_t unit) const {
    for (int seed = 1; seed <= runs; ++seed) {
      cut.o.fill([] { return 7; });
      cut.lse.fill([] { return 7; });
      forward_cut(cut, seed, unit);
      ASSERT_EQ(cut.lse.bytes() == uncut.lse.bytes(), true) << "seed " << seed;
      ASSERT_EQ(cut.o.bytes() == uncut.o.bytes(), true) << "seed " << seed;
    }
  }
  void expect_dq_of_the_uncut_run(const Case& c, int runs) const {
    Document uncut(c), cut(c);
    for (Document* doc : {&uncut, &cut}) {
      doc->lse.fill([] { return 5; });
      doc->delta.fill([] { return 0.1; });
    }
    backward(c.shape, uncut.list(), 1);
    for (int seed = 1; seed <= runs; ++seed) {
      cut.dq.fill([] { return 0; });
      backward_cut(cut, seed, 1);
      ASSERT_EQ(cut.dq.bytes() == uncut.dq.bytes(), true) << "seed " << seed;
    }
  }
};

/// Beyond 128 the strides of K, of V, and of backward's tiles are others; 8 and 72 end in half a
/// vector.
constexpr std::pair<int64_t, int64_t> kDims[] = {{192, 256}, {64, 192}, {256, 72}, {8, 8}, {72, 8}};

INSTANTIATE_TEST_SUITE_P(isa, CpuBitsTest, ::testing::ValuesIn(testing::variants()),
                         ::testing::PrintToStringParamName());

TEST_P(CpuBitsTest, a_document_of_10000_tokens_is_the_same_however_it_was_cut) {
  Case c = small_case(testing::kFast ? 10000 : 1300);
  c.shape.num_heads = 2, c.shape.num_kv_heads = 1;
  expect_bits_of_the_uncut_run(c, 3, 128);
}

TEST_P(CpuBitsTest, forward_is_the_same_for_every_mask_and_odd_cuts) {
  for (const Mask& mask : {Mask{}, Mask{.causal = false}, Mask{.causal = true, .window_left = 100},
                           Mask{.causal = false, .window_left = 70, .window_right = 33}}) {
    Case c = small_case(testing::kFast ? 700 : 300);
    c.mask = mask;
    c.shape.num_heads = 6;  // 3 rows a query: a query's rows may lie in two panels
    c.shape.head_dim_qk = 40;
    c.shape.head_dim_v = 24;
    c.gap = 8;
    expect_bits_of_the_uncut_run(c, 5, 1);
    c.shape.softcap = 4;
    c.spread = 20;  // maxima that rise and fall by far more than a key tile's
    expect_bits_of_the_uncut_run(c, 2, 1);
  }
}

TEST_P(CpuBitsTest, forward_is_the_same_where_keys_are_missing) {
  Case c = small_case(500);
  c.no_keys = {{3, 5}, {100, 200}, {255, 257}, {310, 320}};
  expect_bits_of_the_uncut_run(c, 5, 1);
}

TEST_P(CpuBitsTest, forward_is_the_same_for_every_stride_and_half_a_vector) {
  for (const auto& [d, e] : kDims) {
    SCOPED_TRACE(std::to_string(d) + ", " + std::to_string(e));
    Case c = small_case(150);
    c.shape.head_dim_qk = d;
    c.shape.head_dim_v = e;
    expect_bits_of_the_uncut_run(c, 2, 1);
  }
}

TEST_P(CpuBitsTest, forward_is_the_same_where_one_querys_rows_are_two_items) {
  Case c = small_case(5);
  c.shape.num_heads = kTileRows + 88;
  c.shape.num_kv_heads = 1;
  expect_bits_of_the_uncut_run(c, 4, 1);
}

TEST_P(CpuBitsTest, forward_is_the_same_where_v_is_not_finite) {
  const auto spoiled = [&](Case c) {
    c.mask.window_left = 50;
    Document doc(c);
    // One in a column: of two the sum is NaN, whose bits are not promised.
    doc.v.set(77, 0, 0, std::numeric_limits<double>::infinity());
    doc.v.set(150, 1, 9, -std::numeric_limits<double>::infinity());
    return doc;
  };
  Document uncut = spoiled(small_case(300)), cut = spoiled(small_case(300));
  forward_uncut(uncut);
  EXPECT_EQ(uncut.o.at(100, 0, 0), std::numeric_limits<double>::infinity());
  expect_bits_of(uncut, cut, 5, 1);
}

TEST_P(CpuBitsTest, forward_is_the_same_for_a_negative_scale) {
  Case c = small_case(200);
  c.shape.softmax_scale = -0.25;
  expect_bits_of_the_uncut_run(c, 3, 1);
}

TEST_P(CpuBitsTest, forward_in_fp32_rounds_to_the_same_o) {
  Document doc(small_case(400)), wide(doc.spec), cut(doc.spec);
  forward_uncut(doc);
  wide.o = cut.o = Tensor(ScalarType::kFloat32, 400, 4, 16);
  forward_uncut(wide, ScalarType::kFloat32);
  forward_cut(cut, 3, 1, ScalarType::kFloat32);
  EXPECT_EQ(cut.o.bytes() == wide.o.bytes(), true);
  Tensor rounded(type(), 400, 4, 16);
  size_t i = 0;
  const std::vector<double> values = wide.o.values();
  rounded.fill([&] { return values[i++]; });
  EXPECT_EQ(rounded.values(), doc.o.values());
}

TEST_P(CpuBitsTest, dq_is_the_same_for_every_mask_and_odd_cuts) {
  for (const Mask& mask : {Mask{}, Mask{.causal = false}, Mask{.causal = true, .window_left = 100},
                           Mask{.causal = false, .window_left = 70, .window_right = 33}}) {
    Case c = small_case(testing::kFast ? 700 : 300);
    c.mask = mask;
    c.shape.num_heads = 6;
    c.shape.head_dim_qk = 40;
    c.shape.head_dim_v = 24;
    c.no_keys = {{3, 5}, {100, 200}, {255, 257}};
    expect_dq_of_the_uncut_run(c, 5);
  }
}

TEST_P(CpuBitsTest, dq_is_the_same_for_every_stride_scale_and_group) {
  for (const auto& [d, e] : kDims) {
    SCOPED_TRACE(std::to_string(d) + ", " + std::to_string(e));
    Case c = small_case(150);
    c.shape.head_dim_qk = d;
    c.shape.head_dim_v = e;
    c.shape.softmax_scale = -0.05;
    expect_dq_of_the_uncut_run(c, 2);
  }
  Case c = small_case(5);
  c.shape.num_heads = kTileRows + 88;
  c.shape.num_kv_heads = 1;
  expect_dq_of_the_uncut_run(c, 4);
}

TEST_P(CpuBitsTest, gradients_of_a_list_of_tasks_repeat_for_every_number_of_threads) {
  Case c = small_case(testing::kFast ? 1500 : 600);
  c.key_cuts = {77, 300, 555};
  c.shape.num_heads = 6;
  std::mt19937_64 random(3);
  // Tasks share dk and dv, and some dq where keys come in sub-ranges.
  std::vector<std::pair<Range, Range>> tasks;
  for (const Range& queries : testing::random_cuts(random, {0, c.q_tokens}, 12, 1)) {
    for (const Range& keys : testing::random_cuts(random, {0, queries.end}, 3, 1)) {
      tasks.emplace_back(queries, keys);
    }
  }
  std::shuffle(tasks.begin(), tasks.end(), random);
  const auto gradients = [&](int threads) {
    Document doc(c);
    doc.lse.fill([] { return 6; });
    doc.delta.fill([] { return 0.1; });
    std::vector<Task> all;
    for (const auto& [queries, keys] : tasks) all.push_back(doc.task(queries, keys));
    backward(c.shape, doc.list(std::move(all)), threads);
    return doc;
  };
  const Document first = gradients(1);
  for (const int threads : {1, 2, 3, 4, 4, 3, 2}) {
    const Document doc = gradients(threads);
    ASSERT_EQ(doc.dq.bytes() == first.dq.bytes(), true) << threads << " threads";
    ASSERT_EQ(doc.dk.bytes() == first.dk.bytes(), true) << threads << " threads";
    ASSERT_EQ(doc.dv.bytes() == first.dv.bytes(), true) << threads << " threads";
  }
}

}  // namespace
}  // namespace distca::kernels
