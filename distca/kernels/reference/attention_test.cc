#include "distca/kernels/reference/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "distca/base/error.h"
#include "distca/kernels/attention_testing.h"
#include "distca/kernels/merge.h"

namespace distca::kernels {
namespace {

using testing::Arithmetic;
using testing::Bounds;
using testing::Case;
using testing::Document;
using testing::kNoKey;
using testing::Tensor;
using testing::unit_roundoff;
using testing::WholeMatrix;

constexpr ScalarType kTypes[] = {ScalarType::kFloat64, ScalarType::kFloat32, ScalarType::kBFloat16};

void run_forward(Document& doc, const Range& queries, const Range& keys) {
  reference_forward(doc.spec.shape, doc.spec.type, doc.spec.type, doc.list(queries, keys));
}

void run_backward(Document& doc, const Range& queries, const Range& keys) {
  reference_backward(doc.spec.shape, doc.spec.type, doc.list(queries, keys));
}

void expect_like_whole_matrix(const Case& c, int64_t store_roundings = 1) {
  Document doc(c);
  const WholeMatrix whole(doc);
  Bounds bounds(c, whole, {.store = c.type});
  run_forward(doc, doc.all_queries(), doc.all_keys());
  testing::expect_forward(doc, whole, bounds);
  testing::set_backward_inputs(doc, whole);
  run_backward(doc, doc.all_queries(), doc.all_keys());
  // LSE comes rounded to its own type: every probability is off by that.
  bounds.backward += 2 * bounds.delta_roundoff * (1 + whole.largest_score + std::log(c.k_tokens));
  testing::expect_backward(doc, whole, bounds);
}

Case small_case(int64_t tokens) { return {.q_tokens = tokens, .k_tokens = tokens}; }

TEST(ReferenceAttentionTest, equals_the_whole_matrix_for_every_mask) {
  for (const ScalarType type : kTypes) {
    for (const Mask& mask :
         {Mask{}, Mask{.causal = false}, Mask{.causal = true, .window_left = 5},
          Mask{.causal = false, .window_left = 5, .window_right = 3},
          Mask{.causal = false, .window_right = 0}, Mask{.causal = true, .window_left = 0}}) {
      Case c = small_case(37);
      c.type = type;
      c.mask = mask;
      expect_like_whole_matrix(c);
    }
  }
}

TEST(ReferenceAttentionTest, equals_the_whole_matrix_at_odd_lengths) {
  for (const int64_t tokens : {1, 2, 127, 128, 129}) expect_like_whole_matrix(small_case(tokens));
}

TEST(ReferenceAttentionTest, equals_the_whole_matrix_for_every_head_grouping_and_dimension) {
  const Shape shapes[] = {{.num_heads = 1, .num_kv_heads = 1, .head_dim_qk = 8, .head_dim_v = 8},
                          {.num_heads = 3, .num_kv_heads = 3, .head_dim_qk = 24, .head_dim_v = 8},
                          {.num_heads = 4, .num_kv_heads = 1, .head_dim_qk = 8, .head_dim_v = 32},
                          {.num_heads = 8, .num_kv_heads = 2, .head_dim_qk = 64, .head_dim_v = 64}};
  for (Shape shape : shapes) {
    shape.softmax_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim_qk));
    Case c = small_case(23);
    c.shape = shape;
    c.gap = 16;  // a packed QKV tensor's rows lie further apart than heads x dim
    expect_like_whole_matrix(c);
  }
}

TEST(ReferenceAttentionTest, queries_at_the_end_see_the_keys_before_them) {
  Case c = small_case(10);
  c.q_position = 50;
  c.k_tokens = 60;  // bottom-right causal
  expect_like_whole_matrix(c);
  c.k_tokens = 80;  // the last twenty are beyond every query
  expect_like_whole_matrix(c);
}

TEST(ReferenceAttentionTest, large_logits_stay_finite) {
  for (const double spread : {30.0, 60.0}) {
    Case c = small_case(40);
    c.spread = spread;
    const WholeMatrix whole{Document(c)};
    EXPECT_GT(whole.largest_score, spread == 60 ? 1e4 : 2e3);
    expect_like_whole_matrix(c);
  }
}

TEST(ReferenceAttentionTest, equals_the_whole_matrix_with_a_softcap_and_any_scale) {
  for (const ScalarType type : kTypes) {
    for (const double softcap : {0.0, 0.5, 3.0, 50.0}) {
      for (const double scale : {0.25, -0.5, 0.0}) {
        Case c = small_case(21);
        c.type = type;
        c.shape.softcap = softcap;
        c.shape.softmax_scale = scale;
        expect_like_whole_matrix(c);
      }
    }
  }
}

TEST(ReferenceAttentionTest, a_softcap_bounds_every_score) {
  Case c = small_case(6);
  c.mask.causal = false;
  c.spread = 100;
  c.shape.softcap = 2;
  Document doc(c);
  run_forward(doc, doc.all_queries(), doc.all_keys());
  for (const double lse : doc.lse.values()) {
    EXPECT_LE(lse, 2 + std::log(6.0) + 1e-12);
    EXPECT_GE(lse, -2 + std::log(6.0) - 1e-12);
  }
}

TEST(ReferenceAttentionTest, equal_keys_give_the_mean_of_the_values) {
  Case c = small_case(9);
  c.mask.causal = false;
  Document doc(c);
  doc.k.fill([] { return 0.5; });
  run_forward(doc, doc.all_queries(), doc.all_keys());
  for (int64_t h = 0; h < 4; ++h) {
    double mean = 0, magnitude = 0, score = 0;
    for (int64_t j = 0; j < 9; ++j) mean += doc.v.at(j, h / 2, 3) / 9;
    for (int64_t j = 0; j < 9; ++j) magnitude += std::fabs(doc.v.at(j, h / 2, 3)) / 9;
    for (int64_t x = 0; x < 16; ++x) score += 0.25 * 0.5 * doc.q.at(4, h, x);
    EXPECT_NEAR(doc.o.at(4, h, 3), mean, 20 * 0x1p-53 * magnitude);
    EXPECT_NEAR(doc.lse.at(4, h, 0), score + std::log(9.0), 20 * 0x1p-53 * 8);
  }
}

TEST(ReferenceAttentionTest, forward_bits_do_not_depend_on_cuts) {
  for (const ScalarType type : kTypes) {
    Case c = small_case(100);
    c.type = type;
    c.mask.window_left = 60;
    Document whole(c);
    run_forward(whole, whole.all_queries(), whole.all_keys());
    c.key_cuts = {1, 17, 50, 64, 99};
    Document pieces(c);
    std::vector<Task> tasks;
    for (const Range& queries : {Range{0, 1}, Range{1, 33}, Range{33, 64}, Range{64, 100}}) {
      tasks.push_back(pieces.task(queries, {0, queries.end}));
    }
    reference_forward(c.shape, c.type, c.type, pieces.list(tasks));
    EXPECT_EQ(pieces.o.bytes(), whole.o.bytes());
    EXPECT_EQ(pieces.lse.bytes(), whole.lse.bytes());
  }
}

void expect_gradients_equal_finite_differences(double softcap) {
  Case c{.q_position = 3, .q_tokens = 6, .k_tokens = 9};
  c.mask.window_left = 5;
  c.shape.head_dim_v = 8;
  c.shape.softcap = softcap;
  Document doc(c);
  // Loss = sum of d_o * o.
  double magnitude = 0;
  const auto loss = [&] {
    run_forward(doc, doc.all_queries(), doc.all_keys());
    const auto o = doc.o.values(), d_o = doc.d_o.values();
    double sum = 0;
    magnitude = 0;
    for (size_t i = 0; i < o.size(); ++i) {
      sum += o[i] * d_o[i];
      magnitude += std::fabs(o[i] * d_o[i]);
    }
    return sum;
  };
  loss();
  const RowShape rows{c.q_tokens, c.shape.num_heads, c.shape.head_dim_v};
  testing::row_delta(rows, c.type, doc.d_o.rows(), doc.o.rows(), doc.delta.rows());
  run_backward(doc, doc.all_queries(), doc.all_keys());
  const double step = 0x1p-17;
  const auto compare = [&](const char* name, Tensor& input, const Tensor& gradient, int64_t heads,
                           int64_t dim) {
    for (int64_t t = 0; t < input.tokens(); ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < dim; i += 5) {
          const double x = input.at(t, h, i);
          input.set(t, h, i, x + step);
          const double above = loss();
          input.set(t, h, i, x - step);
          const double below = loss();
          input.set(t, h, i, x);
          // Truncation is step^2 x the third derivative, rounding the loss's own over the step.
          EXPECT_NEAR(gradient.at(t, h, i), (above - below) / (2 * step),
                      magnitude * (step * step + 64 * 0x1p-53 / step))
              << name << "[" << t << "," << h << "," << i << "]";
        }
      }
    }
  };
  compare("dq", doc.q, doc.dq, c.shape.num_heads, c.shape.head_dim_qk);
  compare("dk", doc.k, doc.dk, c.shape.num_kv_heads, c.shape.head_dim_qk);
  compare("dv", doc.v, doc.dv, c.shape.num_kv_heads, c.shape.head_dim_v);
}

TEST(ReferenceAttentionTest, gradients_equal_finite_differences) {
  for (const double softcap : {0.0, 2.0}) expect_gradients_equal_finite_differences(softcap);
}

TEST(ReferenceAttentionTest, a_query_without_keys_gives_nothing) {
  Case c = small_case(8);
  c.q_tokens = 12;
  c.key_cuts = {5};
  c.mask = {.causal = true, .window_left = 2};  // queries 10, 11 see none of the keys
  Document doc(c);
  doc.o.fill([] { return 7; });
  run_forward(doc, doc.all_queries(), doc.all_keys());
  for (int64_t h = 0; h < 4; ++h) {
    EXPECT_EQ(doc.lse.at(9, h, 0) == kNoKey, false);
    EXPECT_EQ(doc.lse.at(10, h, 0), kNoKey);
    EXPECT_EQ(doc.o.at(10, h, 0), 0);
  }
  doc.delta.fill([] { return 1; });
  run_backward(doc, doc.all_queries(), doc.all_keys());
  for (int64_t h = 0; h < 4; ++h) EXPECT_EQ(doc.dq.at(11, h, 0), 0);
  for (const double value : doc.dk.values()) EXPECT_TRUE(std::isfinite(value));
  expect_like_whole_matrix(c);
}

TEST(ReferenceAttentionTest, partial_results_merge_to_the_whole) {
  for (const ScalarType type : kTypes) {
    Case c = small_case(50);
    c.type = type;
    Document doc(c);
    const WholeMatrix whole(doc);
    const ScalarType partial_type = accumulator_type(type);
    Tensor o1(partial_type, 50, 4, 16), o2(partial_type, 50, 4, 16);
    Tensor lse1(partial_type, 50, 4, 1), lse2(partial_type, 50, 4, 1);
    // One call: the partial results are buffers with the same q.
    TaskList list = doc.list(doc.all_queries(), {0, 30});
    list.tasks.push_back(doc.task(doc.all_queries(), {30, 50}));  // wholly masked for the first 30
    list.tasks[1].query_buffer = 1;
    list.queries.push_back(list.queries[0]);
    list.queries[0].o = o1.rows(), list.queries[0].lse = lse1.rows();
    list.queries[1].o = o2.rows(), list.queries[1].lse = lse2.rows();
    reference_forward(c.shape, type, partial_type, list);
    merge_partials({50, 4, 16}, type,
                   std::vector<Partial>{{o1.rows(), partial_type, lse1.rows()},
                                        {o2.rows(), partial_type, lse2.rows()}},
                   {doc.o.rows(), type, doc.lse.rows()});
    Bounds bounds(c, whole, {.store = partial_type, .store_roundings = 1});
    // Partial LSEs are rounded, and the merged O once to its own type.
    bounds.log_sum += 2 * bounds.delta_roundoff * (1 + whole.largest_score + std::log(50));
    bounds.forward += bounds.log_sum + unit_roundoff(type);
    testing::expect_forward(doc, whole, bounds);
  }
}

TEST(ReferenceAttentionTest, partial_gradients_add_up) {
  Case c = small_case(50);
  c.key_cuts = {7, 31};
  Document doc(c);
  const WholeMatrix whole(doc);
  testing::set_backward_inputs(doc, whole);
  for (const Range& keys : {Range{0, 20}, Range{20, 50}}) {
    for (const Range& queries : {Range{0, 25}, Range{25, 50}}) run_backward(doc, queries, keys);
  }
  testing::expect_backward(doc, whole, Bounds(c, whole, {.store_roundings = 4}));
}

TEST(ReferenceAttentionTest, nothing_to_do_is_fine) {
  Document doc(small_case(3));
  reference_forward(doc.spec.shape, doc.spec.type, doc.spec.type, {});
  reference_backward(doc.spec.shape, doc.spec.type, {});
  reference_forward(doc.spec.shape, doc.spec.type, doc.spec.type, doc.list({Task{}}));
  doc.o.fill([] { return 7; });
  run_forward(doc, doc.all_queries(), {0, 0});
  for (const double value : doc.o.values()) EXPECT_EQ(value, 0);
  for (const double value : doc.lse.values()) EXPECT_EQ(value, kNoKey);
}

TEST(ReferenceAttentionTest, broken_shapes_are_checks) {
  Document doc(small_case(4));
  const TaskList good = doc.list();
  const auto run = [&](const Shape& shape, ScalarType o_type, const TaskList& list) {
    reference_forward(shape, ScalarType::kFloat64, o_type, list);
  };
  const auto with_shape = [&](auto change) {
    Shape shape = doc.spec.shape;
    change(shape);
    return shape;
  };
  const auto with_list = [&](auto change) {
    TaskList list = good;
    change(list);
    return list;
  };
  const ScalarType fp64 = ScalarType::kFloat64;
  EXPECT_NO_THROW(run(doc.spec.shape, fp64, good));
  for (const Shape& shape : {with_shape([](Shape& s) { s.num_kv_heads = 3; }),
                             with_shape([](Shape& s) { s.num_heads = 0; }),
                             with_shape([](Shape& s) { s.head_dim_qk = 12; }),
                             with_shape([](Shape& s) { s.softmax_scale = std::nan(""); }),
                             with_shape([](Shape& s) { s.softcap = -1; }),
                             with_shape([](Shape& s) { s.softcap = std::nan(""); }),
                             with_shape([](Shape& s) { s.softcap = HUGE_VAL; })}) {
    EXPECT_THROW(run(shape, fp64, good), CheckFailure);
  }
  for (const TaskList& list :
       {with_list([](TaskList& l) { l.queries[0].q.data = nullptr; }),
        with_list([](TaskList& l) { l.queries[0].o.token_stride = 8; }),
        with_list([](TaskList& l) { l.queries[0].q.head_stride = 8; }),
        with_list([](TaskList& l) { l.tasks[0].q_tokens = -1; }),
        with_list([](TaskList& l) { l.tasks[0].q_position = -1; }),
        with_list([](TaskList& l) { l.tasks[0].q_row = 1; }),
        with_list([](TaskList& l) { l.tasks[0].query_buffer = 1; }),
        with_list([](TaskList& l) { l.tasks[0].keys[0].row = 1; }),
        with_list([](TaskList& l) { l.tasks[0].keys[0].buffer = -1; }),
        with_list([](TaskList& l) { l.tasks[0].keys.push_back(l.tasks[0].keys[0]); })}) {
    EXPECT_THROW(run(doc.spec.shape, fp64, list), CheckFailure);
  }
  EXPECT_THROW(run(doc.spec.shape, ScalarType::kBFloat16, good), CheckFailure);
  const TaskList no_dk = with_list([](TaskList& l) { l.keys[0].dk = {}; });
  EXPECT_NO_THROW(run(doc.spec.shape, fp64, no_dk));
  EXPECT_THROW(reference_backward(doc.spec.shape, fp64, no_dk), CheckFailure);
}

}  // namespace
}  // namespace distca::kernels
