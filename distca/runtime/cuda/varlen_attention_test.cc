// Runs the code for CUDA on the CPU: ATen's operators are replaced by kernels that compute on the
// CPU what the CUDA ones are documented to compute. The results are compared with whole matrices.

#include "distca/runtime/cuda/varlen_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "distca/base/error.h"
#include "distca/kernels/attention_testing.h"
#include "distca/kernels/merge.h"
#include "distca/runtime/cuda/cuda_attention.h"
#include "distca/runtime/cuda/task_launches.h"

namespace distca {
namespace {

using kernels::accumulator_type;
using kernels::Mask;
using kernels::Partial;
using kernels::Task;
using kernels::TaskList;
using kernels::testing::Bounds;
using kernels::testing::Case;
using kernels::testing::Document;
using kernels::testing::kNoKey;
using kernels::testing::Tensor;
using kernels::testing::WholeMatrix;

constexpr int kCpu = -1;

int64_t forward(const Case& c, const TaskList& list,
                std::optional<ScalarType> o_type = std::nullopt) {
  return cuda_forward(c.shape, c.type, o_type.value_or(c.type), list, kCpu);
}
int64_t backward(const Case& c, const TaskList& list) {
  return cuda_backward(c.shape, c.type, list, kCpu);
}

/// O, and each launch's gradients, are rounded to the type once; delta comes from a rounded O.
Bounds bounds_of(const Case& c, const WholeMatrix& whole, int64_t launches) {
  return {c,
          whole,
          {.sums = accumulator_type(c.type), .store = c.type, .store_roundings = 2 + launches}};
}

/// The document's queries in `cuts`, each with the keys it may see.
TaskList cut_list(Document& doc, const std::vector<Range>& cuts) {
  std::vector<Task> tasks;
  for (const Range& cut : cuts) {
    tasks.push_back(doc.task(cut, {0, std::min(doc.spec.q_position + cut.end, doc.spec.k_tokens)}));
  }
  return doc.list(std::move(tasks));
}

void expect_like_whole_matrix(const Case& c, const std::vector<Range>& cuts) {
  Document doc(c);
  const WholeMatrix whole(doc);
  const Bounds bounds = bounds_of(c, whole, 2 * static_cast<int64_t>(cuts.size()));
  const TaskList list = cut_list(doc, cuts);
  forward(c, list);
  kernels::testing::expect_forward(doc, whole, bounds);
  kernels::testing::set_backward_inputs(doc, whole);
  backward(c, list);
  kernels::testing::expect_backward(doc, whole, bounds);
}

class VarlenAttentionTest : public ::testing::TestWithParam<ScalarType> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

INSTANTIATE_TEST_SUITE_P(formats, VarlenAttentionTest,
                         ::testing::Values(ScalarType::kFloat32, ScalarType::kBFloat16));

TEST_P(VarlenAttentionTest, equals_the_whole_matrix_for_every_mask_and_cut) {
  for (const Mask& mask :
       {Mask{}, Mask{.causal = true, .window_left = 9}, Mask{.causal = true, .window_left = 300}}) {
    for (const auto& key_cuts : std::vector<std::vector<int64_t>>{{}, {5, 33, 34, 61}}) {
      for (const int64_t gap : {0, 24, 3}) {  // 3: rows that are not aligned
        const Case c{.type = GetParam(),
                     .q_position = 10,
                     .q_tokens = 60,
                     .k_tokens = 70,
                     .mask = mask,
                     .key_cuts = key_cuts,
                     .gap = gap};
        expect_like_whole_matrix(c, {{0, 60}});
        expect_like_whole_matrix(c, {{0, 13}, {13, 14}, {14, 60}});
        expect_like_whole_matrix(c, {{30, 60}, {20, 30}, {0, 20}});
      }
    }
  }
}

TEST_P(VarlenAttentionTest, split_kv_add_up_to_the_whole) {
  const Case c{.type = GetParam(), .q_tokens = 90, .k_tokens = 90};
  Document doc(c);
  const WholeMatrix whole(doc);
  const Bounds bounds = bounds_of(c, whole, 6);
  kernels::testing::set_backward_inputs(doc, whole);
  const ScalarType partial = accumulator_type(c.type);
  Tensor o[2], lse[2];
  std::vector<Partial> parts;
  for (const int i : {0, 1}) {
    const Range keys = i == 0 ? Range{0, 51} : Range{51, 90};
    TaskList list = doc.list(doc.all_queries(), keys);
    backward(c, list);
    o[i] = Tensor(partial, 90, 4, 16), lse[i] = Tensor(partial, 90, 4, 1);
    list.queries[0].o = o[i].rows(), list.queries[0].lse = lse[i].rows();
    forward(c, list, partial);
    parts.push_back({o[i].rows(), partial, lse[i].rows()});
  }
  kernels::testing::expect_backward(doc, whole, bounds);
  EXPECT_EQ(lse[1].at(50, 0, 0), kNoKey);  // sees none of the keys from 51 on
  kernels::merge_partials({90, 4, 16}, c.type, parts, {doc.o.rows(), c.type, doc.lse.rows()});
  kernels::testing::expect_forward(doc, whole, bounds);
}

TEST_P(VarlenAttentionTest, a_query_without_keys_gives_nothing) {
  const Case c{.type = GetParam(),
               .q_position = 4,
               .q_tokens = 10,
               .k_tokens = 8,
               .mask = {.window_left = 2}};
  expect_like_whole_matrix(c, {{0, 10}});  // queries 11 to 13 see none of the keys 0 to 7
  Document doc(c);
  doc.o.fill([] { return 7; });
  EXPECT_EQ(forward(c, doc.list(doc.all_queries(), {0, 0})), 0);
  for (const double value : doc.o.values()) EXPECT_EQ(value, 0);
  for (const double value : doc.lse.values()) EXPECT_EQ(value, kNoKey);
  EXPECT_EQ(forward(c, {}), 0);
  EXPECT_EQ(backward(c, {}), 0);
}

TEST(VarlenAttention, only_keys_in_several_memories_and_scattered_queries_are_copied) {
  const Case c{.type = ScalarType::kBFloat16, .q_tokens = 60, .k_tokens = 60};
  Document doc(c), other(c, 2);
  const int64_t o_and_lse = 4 * (16 * 2 + 4), q = 4 * 16 * 2, keys = 2 * 2 * 16 * 2;
  TaskList list = cut_list(doc, {{0, 20}, {20, 60}});
  EXPECT_EQ(forward(c, list), 60 * o_and_lse);
  // Rows of a launch in another order than the buffer's.
  std::swap(list.tasks[0], list.tasks[1]);
  EXPECT_EQ(forward(c, list), 60 * (o_and_lse + q));
  std::swap(list.tasks[0], list.tasks[1]);
  list.keys.push_back({.tokens = 60, .k = other.k.rows(), .v = other.v.rows()});
  for (Task& task : list.tasks) {
    const int64_t rest = task.keys[0].tokens - 15;
    task.keys[0].tokens = 15;
    task.keys.push_back({1, 15, rest, 15});
  }
  EXPECT_EQ(forward(c, list), 60 * (o_and_lse + keys));  // once, though two tasks read them
}

TEST_P(VarlenAttentionTest, a_row_has_the_same_bits_whatever_its_launch_computes_beside_it) {
  const Case c{.type = GetParam(), .q_tokens = 700, .k_tokens = 700};
  Document together(c), alone(c);
  const std::vector<Range> cuts = {{0, 30}, {30, 600}, {600, 680}, {680, 700}};
  const TaskList list = cut_list(together, cuts);
  ASSERT_EQ(kernels::plan_forward_launches(c.type, list).launches.size(), 2u);  // by length
  forward(c, list);
  for (const Range& cut : cuts) forward(c, cut_list(alone, {cut}));
  EXPECT_EQ(together.o.bytes(), alone.o.bytes());
  EXPECT_EQ(together.lse.bytes(), alone.lse.bytes());
}

TEST(VarlenAttention, launches_of_another_layer_serve_a_layer_and_change_no_bit) {
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    TaskLaunches of_forward, of_backward;
    int64_t made = 0;
    for (const int64_t gap : {0, 0, 3, 3, 0}) {  // 3: rows that are not aligned
      const Case c{.type = type, .q_tokens = 80, .k_tokens = 80, .key_cuts = {31}, .gap = gap};
      Document anew(c), again(c);
      const WholeMatrix whole(anew);
      for (Document* doc : {&anew, &again}) {
        const bool shares = doc == &again;
        const TaskList list = cut_list(*doc, {{0, 20}, {40, 80}, {20, 40}});
        cuda_forward(c.shape, type, type, list, kCpu, shares ? &of_forward : nullptr);
        kernels::testing::set_backward_inputs(*doc, whole);
        cuda_backward(c.shape, type, list, kCpu, shares ? &of_backward : nullptr);
      }
      const auto bytes = [](Document& doc) {
        return std::array{doc.o.bytes(), doc.lse.bytes(), doc.dq.bytes(), doc.dk.bytes(),
                          doc.dv.bytes()};
      };
      EXPECT_EQ(bytes(again), bytes(anew)) << gap;
      made += made == 0 || (gap == 3) == (made % 2 == 1) ? 1 : 0;
      EXPECT_EQ(of_forward.times_made(), made);
      EXPECT_EQ(of_backward.times_made(), made);
    }
    EXPECT_EQ(made, 3);  // aligned, not aligned, aligned
  }
}

TEST(VarlenAttention, the_same_tasks_give_the_same_bits) {
  const Case c{.type = ScalarType::kBFloat16, .q_tokens = 80, .k_tokens = 80, .key_cuts = {31}};
  Document a(c), b(c);
  for (Document* doc : {&a, &b}) {
    const WholeMatrix whole(*doc);
    kernels::testing::set_backward_inputs(*doc, whole);
    backward(c, cut_list(*doc, {{0, 20}, {40, 80}, {20, 40}}));
  }
  EXPECT_EQ(a.dq.bytes(), b.dq.bytes());
  EXPECT_EQ(a.dk.bytes(), b.dk.bytes());
  EXPECT_EQ(a.dv.bytes(), b.dv.bytes());
}

TEST(VarlenAttention, output_from_delta_has_its_row_sum_whatever_the_gradients_size) {
  for (const auto& [type, tolerance] : {std::pair(at::kDouble, 1e-14), std::pair(at::kFloat, 1e-5),
                                        std::pair(at::kBFloat16, 1e-2)}) {
    const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
    // The last two: denormal in fp32 and bf16, whose reciprocals are infinite.
    for (const double size : {1.0, 1e-30, 1e30, 1e-39, 0x1p-132}) {
      const at::Tensor d_o = (at::randn({9, 4, 16}, at::kDouble) * size).to(type);
      d_o[3].zero_();
      const at::Tensor delta = (at::randn({9, 4, 1}, at::kDouble) * size).to(sums);
      const at::Tensor o = at::empty_like(d_o);
      aten_output_from_delta(d_o, delta, o);
      const at::Tensor sum = (o.to(at::kDouble) * d_o.to(at::kDouble)).sum(-1, true);
      at::Tensor want = delta.to(at::kDouble).clone();
      want[3].zero_();
      EXPECT_LE(((sum - want).abs() / delta.abs()).max().item<double>(), tolerance) << size;
    }
  }
}

TEST(VarlenAttention, broken_shapes_are_checks) {
  Case c{.q_tokens = 4, .k_tokens = 4};
  Document doc(c);
  TaskList list = doc.list();
  list.queries[0].q.data = nullptr;
  EXPECT_THROW(forward(c, list), CheckFailure);
  list = doc.list();
  list.keys[0].dv = {};
  EXPECT_THROW(backward(c, list), CheckFailure);
}

}  // namespace
}  // namespace distca
