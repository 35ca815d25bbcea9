#include "distca/runtime/aten_attention.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "distca/base/error.h"
#include "distca/kernels/attention_testing.h"
#include "distca/kernels/merge.h"

namespace distca {
namespace {

using kernels::accumulator_type;
using kernels::Mask;
using kernels::Partial;
using kernels::Shape;
using kernels::Task;
using kernels::TaskList;
using kernels::testing::Bounds;
using kernels::testing::Case;
using kernels::testing::Document;
using kernels::testing::kNoKey;
using kernels::testing::Tensor;
using kernels::testing::WholeMatrix;

constexpr int kCpu = -1;
constexpr ScalarType kTypes[] = {ScalarType::kFloat64, ScalarType::kFloat32, ScalarType::kBFloat16};

enum class Path { kFast, kMatmul };

void forward(Path path, const Case& c, const TaskList& list,
             std::optional<ScalarType> o_type = std::nullopt) {
  if (path == Path::kMatmul) return aten_matmul_forward(c.shape, c.type, list, kCpu, o_type);
  aten_forward(c.shape, c.type, list, o_type);
}

void backward(Path path, const Case& c, const TaskList& list) {
  if (path == Path::kMatmul) return aten_matmul_backward(c.shape, c.type, list, kCpu);
  aten_backward(c.shape, c.type, list);
}

/// In bf16 ATen takes Vectorized::fexp_u20, which is 2^floor(x) (1 + f - K(f)) with a cubic K whose
/// constant term is 1.07e-4: its relative error, largest at whole exponents.
constexpr double kFastExponential = 1.08e-4;

/// ATen's bf16 forward rounds a part's O once and we the merged O; its backward adds to bf16
/// gradients after every 32 queries (64 from 192 queries on).
Bounds bounds_of(const Case& c, const WholeMatrix& whole) {
  return {c,
          whole,
          {.sums = accumulator_type(c.type),
           .store = c.type,
           .store_roundings = 2 + c.q_tokens / 32,
           .exponential = c.type == ScalarType::kBFloat16 ? kFastExponential : 0}};
}

void expect_like_whole_matrix(Path path, const Case& c) {
  SCOPED_TRACE(
      fmt::format("type {}, heads {}:{}, dims {} {}, queries {}+{}, keys {} in {}, causal "
                  "{}, window {} {}",
                  static_cast<int>(c.type), c.shape.num_heads, c.shape.num_kv_heads,
                  c.shape.head_dim_qk, c.shape.head_dim_v, c.q_position, c.q_tokens, c.k_tokens,
                  c.key_cuts.size() + 1, c.mask.causal, c.mask.window_left, c.mask.window_right));
  Document doc(c);
  const WholeMatrix whole(doc);
  const Bounds bounds = bounds_of(c, whole);
  forward(path, c, doc.list());
  kernels::testing::expect_forward(doc, whole, bounds);
  kernels::testing::set_backward_inputs(doc, whole);
  backward(path, c, doc.list());
  kernels::testing::expect_backward(doc, whole, bounds);
}

class AtenAttentionTest : public ::testing::TestWithParam<Path> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

INSTANTIATE_TEST_SUITE_P(Paths, AtenAttentionTest, ::testing::Values(Path::kFast, Path::kMatmul),
                         [](const auto& info) {
                           return info.param == Path::kFast ? "fast" : "matmul";
                         });

TEST_P(AtenAttentionTest, equals_the_whole_matrix_for_every_mask_and_cut) {
  const std::vector<std::vector<int64_t>> cuts = {{}, {40}, {3, 50}, {1, 29, 61}, {5, 33, 34, 69}};
  for (const ScalarType type : kTypes) {
    for (const Mask& mask : {Mask{}, Mask{.causal = false}, Mask{.causal = true, .window_left = 9},
                             Mask{.causal = true, .window_left = 45},
                             Mask{.causal = false, .window_left = 20, .window_right = 7}}) {
      for (const auto& key_cuts : cuts) {
        for (const int64_t q_position : {0, 33}) {
          Case c{.type = type,
                 .q_position = q_position,
                 .q_tokens = 70 - q_position,
                 .k_tokens = 70,
                 .mask = mask,
                 .key_cuts = key_cuts,
                 .gap = 24};
          expect_like_whole_matrix(GetParam(), c);
        }
      }
    }
  }
}

TEST_P(AtenAttentionTest, equals_the_whole_matrix_for_every_head_grouping) {
  for (const ScalarType type : kTypes) {
    for (const auto& [heads, kv_heads] :
         {std::pair(1, 1), std::pair(3, 3), std::pair(4, 1), std::pair(8, 2)}) {
      for (const int64_t dim : {8, 64}) {
        Case c{.type = type, .q_position = 20, .q_tokens = 40, .k_tokens = 60, .key_cuts = {15}};
        c.shape = {.num_heads = heads,
                   .num_kv_heads = kv_heads,
                   .head_dim_qk = dim,
                   .head_dim_v = dim,
                   .softmax_scale = 1 / std::sqrt(static_cast<double>(dim))};
        expect_like_whole_matrix(GetParam(), c);
      }
    }
  }
}

TEST_P(AtenAttentionTest, equals_the_whole_matrix_at_odd_lengths) {
  for (const ScalarType type : kTypes) {
    for (const int64_t tokens : {1, 2, 127, 128, 129, 300}) {
      expect_like_whole_matrix(GetParam(), {.type = type, .q_tokens = tokens, .k_tokens = tokens});
    }
  }
}

TEST_P(AtenAttentionTest, blocks_of_a_window_or_of_many_keys_join_up) {
  for (const ScalarType type : {ScalarType::kFloat64, ScalarType::kBFloat16}) {
    Case c{.type = type, .q_position = 530, .q_tokens = 30, .k_tokens = 560};
    expect_like_whole_matrix(GetParam(), c);  // more keys than a part holds
    c = {.type = type, .q_tokens = 290, .k_tokens = 290, .mask = {.window_left = 140}};
    c.key_cuts = {100, 201};
    expect_like_whole_matrix(GetParam(), c);  // more queries than share a window's edge
  }
}

TEST_P(AtenAttentionTest, head_dims_may_differ) {
  for (const ScalarType type : kTypes) {
    Case c{.type = type, .q_tokens = 33, .k_tokens = 33, .key_cuts = {20}};
    c.shape.head_dim_v = 8;
    expect_like_whole_matrix(GetParam(), c);
  }
}

TEST_P(AtenAttentionTest, a_softcap_bends_scores_and_their_gradients) {
  for (const ScalarType type : kTypes) {
    for (const Mask& mask : {Mask{}, Mask{.causal = true, .window_left = 9}}) {
      Case c{.type = type,
             .q_position = 15,
             .q_tokens = 50,
             .k_tokens = 65,
             .mask = mask,
             .key_cuts = {20},
             .spread = 3};
      c.shape.softcap = 5;  // scores have a standard deviation of 9
      expect_like_whole_matrix(GetParam(), c);
    }
  }
}

TEST_P(AtenAttentionTest, keys_that_nobody_sees_change_nothing) {
  for (const ScalarType type : kTypes) {
    Case c{
        .type = type, .q_position = 10, .q_tokens = 20, .k_tokens = 60, .key_cuts = {12, 31, 45}};
    expect_like_whole_matrix(GetParam(), c);
    c.mask = {.causal = false, .window_left = 2, .window_right = 0};
    expect_like_whole_matrix(GetParam(), c);
  }
}

TEST_P(AtenAttentionTest, a_query_without_keys_gives_nothing) {
  Case c{.q_position = 4, .q_tokens = 10, .k_tokens = 8, .mask = {.window_left = 2}};
  expect_like_whole_matrix(GetParam(), c);  // queries 11 to 13 see none of the keys 0 to 7
  Document doc(c);
  doc.o.fill([] { return 7; });
  forward(GetParam(), c, doc.list(doc.all_queries(), {0, 0}));
  for (const double value : doc.o.values()) EXPECT_EQ(value, 0);
  for (const double value : doc.lse.values()) EXPECT_EQ(value, kNoKey);
}

TEST_P(AtenAttentionTest, large_logits_and_equal_keys_stay_within_bounds) {
  for (const ScalarType type : kTypes) {
    Case c{.type = type, .q_tokens = 50, .k_tokens = 50, .key_cuts = {17}, .spread = 60};
    Document doc(c);
    EXPECT_GT(WholeMatrix(doc).largest_score, 1e4);
    expect_like_whole_matrix(GetParam(), c);
    doc.k.fill([] { return 0.5; });
    doc.q.fill([] { return 0.25; });
    forward(GetParam(), c, doc.list());
    const WholeMatrix equal(doc);
    kernels::testing::expect_forward(doc, equal, bounds_of(c, equal));
  }
}

TEST_P(AtenAttentionTest, rows_without_gradient_get_none) {
  Case c{.type = ScalarType::kFloat32, .q_tokens = 9, .k_tokens = 9};
  Document doc(c);
  for (int64_t h = 0; h < 4; ++h) {
    for (int64_t i = 0; i < 16; ++i) doc.d_o.set(5, h, i, 0);
  }
  const WholeMatrix whole(doc);
  kernels::testing::set_backward_inputs(doc, whole);
  backward(GetParam(), c, doc.list());
  kernels::testing::expect_backward(doc, whole, bounds_of(c, whole));
  for (int64_t h = 0; h < 4; ++h) EXPECT_EQ(doc.dq.at(5, h, 0), 0);
}

TEST_P(AtenAttentionTest, tasks_of_two_servers_add_up_to_the_whole) {
  for (const ScalarType type : kTypes) {
    Case c{.type = type, .q_tokens = 90, .k_tokens = 90, .key_cuts = {64}};
    Document doc(c);
    const WholeMatrix whole(doc);
    Bounds bounds = bounds_of(c, whole);
    kernels::testing::set_backward_inputs(doc, whole);
    // One server has the first queries, and the last ones with some of their keys.
    for (const auto& [queries, keys] :
         {std::pair(Range{0, 40}, Range{0, 40}), std::pair(Range{40, 90}, Range{0, 51}),
          std::pair(Range{40, 90}, Range{51, 90})}) {
      backward(GetParam(), c, doc.list(queries, keys));
    }
    kernels::testing::expect_backward(doc, whole, bounds);

    const ScalarType partial = accumulator_type(type);
    Tensor o[2], lse[2];
    std::vector<Partial> parts;
    for (const int i : {0, 1}) {
      o[i] = Tensor(partial, 90, 4, 16), lse[i] = Tensor(partial, 90, 4, 1);
      TaskList list = doc.list(doc.all_queries(), i == 0 ? Range{0, 51} : Range{51, 90});
      list.queries[0].o = o[i].rows(), list.queries[0].lse = lse[i].rows();
      forward(GetParam(), c, list, partial);
      parts.push_back({o[i].rows(), partial, lse[i].rows()});
    }
    kernels::merge_partials({90, 4, 16}, type, parts, {doc.o.rows(), type, doc.lse.rows()});
    kernels::testing::expect_forward(doc, whole, bounds);
  }
}

TEST_P(AtenAttentionTest, a_batch_equals_its_tasks_one_by_one_bit_for_bit) {
  Case c{.type = ScalarType::kFloat32, .q_tokens = 60, .k_tokens = 60, .gap = 8};
  Document batched(c), single(c);
  std::vector<Task> tasks;
  for (const Range& queries : {Range{0, 31}, Range{31, 31}, Range{31, 60}}) {
    tasks.push_back(single.task(queries, {0, queries.end}));
    forward(GetParam(), c, single.list({tasks.back()}));
  }
  forward(GetParam(), c, batched.list(tasks));
  // The bytes between the rows are compared too: nobody wrote there.
  EXPECT_EQ(batched.o.bytes(), single.o.bytes());
  EXPECT_EQ(batched.lse.bytes(), single.lse.bytes());
  forward(GetParam(), c, {});
  backward(GetParam(), c, {});
}

TEST_P(AtenAttentionTest, broken_shapes_are_checks) {
  Case c{.q_tokens = 4, .k_tokens = 4};
  Document doc(c);
  TaskList list = doc.list();
  list.queries[0].q.data = nullptr;
  EXPECT_THROW(forward(GetParam(), c, list), CheckFailure);
  list = doc.list();
  list.keys[0].dv = {};
  EXPECT_THROW(backward(GetParam(), c, list), CheckFailure);
  c.shape.num_kv_heads = 3;
  EXPECT_THROW(forward(GetParam(), c, {}), CheckFailure);
}

}  // namespace
}  // namespace distca
