#include "distca/kernels/cpu/attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "distca/base/error.h"
#include "distca/kernels/cpu/cpu_attention_testing.h"
#include "distca/kernels/merge.h"
#include "distca/kernels/reference/attention.h"

namespace distca::kernels {
namespace {

using testing::Bounds;
using testing::Case;
using testing::Document;
using testing::Expected;
using testing::Tensor;
using testing::WholeMatrix;

Shape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim_qk, int64_t head_dim_v) {
  return {.num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim_qk = head_dim_qk,
          .head_dim_v = head_dim_v,
          .softmax_scale = 1 / std::sqrt(static_cast<double>(head_dim_qk))};
}

class CpuAttentionTest : public testing::CpuAttentionSuite {
 protected:
  Case small_case(int64_t tokens) const {
    return {.type = type(), .q_tokens = tokens, .k_tokens = tokens};
  }

  void expect_forward(Document& doc, const WholeMatrix& whole) const {
    forward(doc.spec.shape, doc.list());
    testing::expect_forward(doc, whole, bounds(doc.spec, whole));
  }
  void expect_backward(Document& doc, const WholeMatrix& whole) const {
    testing::set_backward_inputs(doc, whole);
    backward(doc.spec.shape, doc.list());
    testing::expect_backward(doc, whole, bounds(doc.spec, whole));
  }
  void expect_like_whole_matrix(const Case& c) const {
    const Shape& s = c.shape;
    SCOPED_TRACE(fmt::format(
        "heads {}:{}, dims {} {}, scale {}, softcap {}, queries {}+{}, keys {} cut {} times, "
        "causal {}, window {} {}",
        s.num_heads, s.num_kv_heads, s.head_dim_qk, s.head_dim_v, s.softmax_scale, s.softcap,
        c.q_position, c.q_tokens, c.k_tokens, c.key_cuts.size(), c.mask.causal, c.mask.window_left,
        c.mask.window_right));
    Document doc(c);
    const WholeMatrix whole(doc);
    expect_forward(doc, whole);
    expect_backward(doc, whole);
  }
};

INSTANTIATE_TEST_SUITE_P(isa, CpuAttentionTest, ::testing::ValuesIn(testing::variants()),
                         ::testing::PrintToStringParamName());

TEST_P(CpuAttentionTest, equals_the_whole_matrix_at_odd_lengths) {
  for (const int64_t tokens : {1, 2, 15, 31, 33, 63, 64, 65, 127, 128, 129, 260}) {
    expect_like_whole_matrix(small_case(tokens));
  }
}

TEST_P(CpuAttentionTest, equals_the_whole_matrix_for_every_mask_and_cut) {
  const std::vector<std::vector<int64_t>> cuts = {{}, {40}, {1, 29, 61, 62, 63}};
  for (const Mask& mask :
       {Mask{}, Mask{.causal = false}, Mask{.causal = true, .window_left = 9},
        Mask{.causal = true, .window_left = 0}, Mask{.causal = true, .window_left = 70},
        Mask{.causal = false, .window_right = 5}, Mask{.causal = false, .window_left = 30},
        Mask{.causal = false, .window_left = 20, .window_right = 7}}) {
    for (const auto& key_cuts : cuts) {
      for (const int64_t q_position : {0, 33}) {
        Case c = small_case(100);
        c.q_position = q_position;
        c.q_tokens = 100 - q_position;
        c.mask = mask;
        c.key_cuts = key_cuts;
        c.gap = 24;  // a packed QKV tensor's rows lie further apart than heads x dim
        expect_like_whole_matrix(c);
      }
    }
  }
}

TEST_P(CpuAttentionTest, equals_the_whole_matrix_for_every_head_grouping) {
  for (const auto& [heads, kv_heads] :
       {std::pair(1, 1), std::pair(3, 3), std::pair(4, 2), std::pair(3, 1), std::pair(4, 1),
        std::pair(14, 2), std::pair(8, 1), std::pair(33, 1)}) {
    Case c = small_case(70);
    c.q_position = 20;
    c.k_tokens = 90;
    c.key_cuts = {15};
    c.shape = shape_of(heads, kv_heads, 16, 16);
    expect_like_whole_matrix(c);
  }
}

TEST_P(CpuAttentionTest, equals_the_whole_matrix_for_every_head_dim) {
  for (const auto& [qk, v] :
       {std::pair(8, 8), std::pair(24, 24), std::pair(40, 40), std::pair(64, 64), std::pair(72, 72),
        std::pair(80, 80), std::pair(96, 96), std::pair(128, 128), std::pair(192, 128),
        std::pair(256, 256), std::pair(8, 256), std::pair(256, 8)}) {
    Case c = small_case(67);
    c.shape = shape_of(2, 1, qk, v);
    expect_like_whole_matrix(c);
  }
}

TEST_P(CpuAttentionTest, equals_the_whole_matrix_where_there_are_more_keys_than_queries) {
  Case c = small_case(10);
  for (const int64_t keys : {310, 330, 500}) {  // the queries' positions end at 310
    c.q_position = 300;
    c.k_tokens = keys;
    expect_like_whole_matrix(c);
    c.mask.causal = !c.mask.causal;
  }
}

TEST_P(CpuAttentionTest, equals_the_whole_matrix_where_keys_are_missing) {
  Case c = small_case(200);
  c.q_position = 60;
  c.k_tokens = 280;
  c.key_cuts = {3, 77, 130, 131, 199};
  c.no_keys = {{0, 1}, {64, 70}, {100, 128}, {129, 130}, {192, 257}};
  for (const Mask& mask : {Mask{}, Mask{.causal = false}, Mask{.causal = true, .window_left = 40},
                           Mask{.causal = false, .window_left = 10, .window_right = 10}}) {
    c.mask = mask;
    expect_like_whole_matrix(c);
  }
}

TEST_P(CpuAttentionTest, equals_the_whole_matrix_with_a_softcap_and_any_scale) {
  for (const double softcap : {0.0, 0.5, 3.0, 50.0}) {
    for (const double scale : {0.25, -0.5, 0.0}) {
      Case c = small_case(70);
      c.shape.softcap = softcap;
      c.shape.softmax_scale = scale;
      expect_like_whole_matrix(c);
    }
  }
}

TEST_P(CpuAttentionTest, large_logits_stay_within_bounds) {
  for (const double spread : {30.0, 60.0}) {
    Case c = small_case(130);
    c.spread = spread;
    Document doc(c);
    const WholeMatrix whole(doc);
    EXPECT_GT(whole.largest_score, spread == 60 ? 1e4 : 2e3);
    expect_forward(doc, whole);
    expect_backward(doc, whole);
  }
}

TEST_P(CpuAttentionTest, equal_keys_give_the_mean_of_the_values) {
  Case c = small_case(150);
  Document doc(c);
  doc.k.fill([] { return 0.5; });
  const WholeMatrix whole(doc);
  expect_forward(doc, whole);
  expect_backward(doc, whole);
}

/// Smaller than any normal number of fp32 and bf16, yet some are not 0.
double denormal(std::mt19937_64& random) {
  return std::ldexp(static_cast<double>(random() % 17) - 8, -132);
}

TEST_P(CpuAttentionTest, denormal_inputs_stay_within_bounds) {
  for (const int which : {0, 1, 2, 3}) {
    Document doc(small_case(90));
    Tensor* tensors[] = {&doc.q, &doc.k, &doc.v, &doc.d_o};
    std::mt19937_64 random(7);
    tensors[which]->fill([&] { return denormal(random); });
    const WholeMatrix whole(doc);
    expect_forward(doc, whole);
    expect_backward(doc, whole);
  }
}

TEST_P(CpuAttentionTest, is_within_both_bounds_of_the_reference) {
  Case c = small_case(300);
  c.shape = shape_of(6, 2, 64, 40);
  c.key_cuts = {17, 131};
  c.mask.window_left = 150;
  Document doc(c), reference(c);
  const WholeMatrix whole(doc);
  const Bounds cpu = bounds(c, whole);
  const Bounds other(c, whole, {.store = type()});
  const auto expect_close = [](const char* name, const Tensor& a, const Tensor& b,
                               const Expected& magnitude, double bound, double underflow) {
    testing::expect_close(name, a.values(), {b.values(), magnitude.magnitude, magnitude.factor},
                          bound, underflow);
  };
  forward(c.shape, doc.list());
  reference_forward(c.shape, type(), type(), reference.list());
  const double underflow = cpu.underflow + other.underflow;
  expect_close("o", doc.o, reference.o, whole.o, cpu.forward + other.forward, underflow);
  testing::set_backward_inputs(doc, whole);
  testing::set_backward_inputs(reference, whole);
  backward(c.shape, doc.list());
  reference_backward(c.shape, type(), reference.list());
  // The reference's sums are in double, but LSE and delta come rounded.
  const double rounded = 2 * other.delta_roundoff * (1 + whole.largest_score + std::log(300));
  const double backward_bound = cpu.backward + other.backward + rounded;
  expect_close("dq", doc.dq, reference.dq, whole.dq, backward_bound, underflow);
  expect_close("dk", doc.dk, reference.dk, whole.dk, backward_bound, underflow);
  expect_close("dv", doc.dv, reference.dv, whole.dv, backward_bound, underflow);
}

TEST_P(CpuAttentionTest, o_may_be_fp32) {
  Case c = small_case(150);
  Document doc(c);
  const WholeMatrix whole(doc);
  Tensor o(ScalarType::kFloat32, 150, 4, 16, 8);
  TaskList list = doc.list();
  list.queries[0].o = o.rows();
  forward(c.shape, list, 2, ScalarType::kFloat32);
  const Bounds within = bounds(c, whole, ScalarType::kFloat32);
  testing::expect_close("o", o.values(), whole.o, within.forward, within.underflow);
}

TEST_P(CpuAttentionTest, partial_results_merge_to_the_whole) {
  Case c = small_case(200);
  c.key_cuts = {17, 131};
  Document doc(c);
  const WholeMatrix whole(doc);
  const Range ranges[] = {{0, 50}, {50, 129}, {129, 200}};  // hidden from the first queries
  std::vector<Tensor> o(3, Tensor(ScalarType::kFloat32, 200, 4, 16));
  std::vector<Tensor> lse(3, Tensor(ScalarType::kFloat32, 200, 4, 1));
  std::vector<Partial> parts;
  for (const int i : {0, 1, 2}) {
    TaskList list = doc.list(doc.all_queries(), ranges[i]);
    list.queries[0].o = o[i].rows(), list.queries[0].lse = lse[i].rows();
    forward(c.shape, list, 2, ScalarType::kFloat32);
    parts.push_back({o[i].rows(), ScalarType::kFloat32, lse[i].rows()});
  }
  merge_partials({200, 4, 16}, type(), parts, {doc.o.rows(), type(), doc.lse.rows()});
  Bounds within = bounds(c, whole);
  within.forward += within.log_sum;  // the weights of the parts are as good as their LSEs
  within.log_sum *= 2;
  testing::expect_forward(doc, whole, within);
}

TEST_P(CpuAttentionTest, partial_gradients_add_up_to_the_whole) {
  Case c = small_case(200);
  c.key_cuts = {17, 131};
  Document doc(c);
  const WholeMatrix whole(doc);
  testing::set_backward_inputs(doc, whole);
  std::vector<Task> tasks;
  for (const Range& keys : {Range{0, 50}, Range{50, 129}, Range{129, 200}}) {
    for (const Range& queries : {Range{0, 61}, Range{61, 200}}) {
      tasks.push_back(doc.task(queries, keys));
    }
  }
  backward(c.shape, doc.list(tasks));
  testing::expect_backward(doc, whole, bounds(c, whole));
}

TEST_P(CpuAttentionTest, gradients_are_added_to_what_is_there) {
  Case c = small_case(140);
  Document fresh(c), added(c);
  const WholeMatrix whole(fresh);
  for (Document* doc : {&fresh, &added}) {
    testing::set_backward_inputs(*doc, whole);
    if (doc == &added) {
      for (Tensor* gradient : {&doc->dq, &doc->dk, &doc->dv}) gradient->fill([] { return 512; });
    }
    backward(c.shape, doc->list());
  }
  const auto expect_shifted = [](const Tensor& from, const Tensor& to) {
    const std::vector<double> a = from.values(), b = to.values();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(b[i], a[i] + 512, 512 * 64 * 0x1p-24) << i;
  };
  expect_shifted(fresh.dq, added.dq);
  expect_shifted(fresh.dk, added.dk);
  expect_shifted(fresh.dv, added.dv);
}

TEST_P(CpuAttentionTest, only_fp32_and_bf16_up_to_head_dim_256_are_supported) {
  EXPECT_TRUE(cpu_supports(shape_of(4, 2, 256, 8), type()));
  EXPECT_FALSE(cpu_supports(shape_of(4, 2, 264, 8), type()));
  EXPECT_FALSE(cpu_supports(shape_of(4, 2, 8, 264), type()));
  EXPECT_FALSE(cpu_supports(shape_of(4, 2, 8, 8), ScalarType::kFloat64));
}

TEST_P(CpuAttentionTest, broken_shapes_are_checks) {
  Case c = small_case(4);
  Document doc(c);
  TaskList list = doc.list();
  list.queries[0].q.data = nullptr;
  EXPECT_THROW(forward(c.shape, list), CheckFailure);
  list = doc.list();
  list.keys[0].dk.data = nullptr;
  EXPECT_NO_THROW(forward(c.shape, list));
  EXPECT_THROW(backward(c.shape, list), CheckFailure);
  c.shape.num_kv_heads = 3;
  EXPECT_THROW(forward(c.shape, {}), CheckFailure);
  EXPECT_THROW(forward(shape_of(1, 1, 264, 8), {}), CheckFailure);
}

}  // namespace
}  // namespace distca::kernels
