#include "distca/kernels/task_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/kernels/reference/attention.h"

namespace distca::kernels {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

/// Two query buffers and two key buffers of 32 tokens, heads 4:2, dims 8 and 16, and two tasks.
struct Sample {
  static constexpr int64_t kTokens = 32;
  Shape shape{
      .num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 8, .head_dim_v = 16, .softmax_scale = 0.3};
  ScalarType type = ScalarType::kFloat32;
  std::vector<std::vector<float>> arrays;
  TaskList list;

  Sample() {
    for (int i = 0; i < 2; ++i) {
      list.queries.push_back({.tokens = kTokens,
                              .q = rows(4, 8),
                              .o = rows(4, 16),
                              .lse = rows(4, 1),
                              .d_o = rows(4, 16),
                              .delta = rows(4, 1),
                              .dq = rows(4, 8)});
      list.keys.push_back({.tokens = kTokens,
                           .k = rows(2, 8),
                           .v = rows(2, 16),
                           .dk = rows(2, 8),
                           .dv = rows(2, 16)});
    }
    list.tasks = {{.query_buffer = 0,
                   .q_row = 4,
                   .q_tokens = 28,
                   .q_position = 10,
                   .keys = {{.buffer = 1, .row = 0, .tokens = 8, .position = 0},
                            {.buffer = 0, .row = 2, .tokens = 30, .position = 8}}},
                  {.query_buffer = 1,
                   .q_row = 0,
                   .q_tokens = 32,
                   .q_position = 0,
                   .keys = {{.buffer = 1, .row = 8, .tokens = 24, .position = 0}}}};
  }
  Rows rows(int64_t heads, int64_t dim) {
    arrays.emplace_back(kTokens * heads * dim, 0.25F);
    return {arrays.back().data(), heads * dim, dim};
  }
};

/// Returns the complaint about the sample after `change`, or "" if there is none.
std::string complaint(const std::function<void(Sample&)>& change, bool backward) {
  Sample sample;
  change(sample);
  try {
    if (backward) {
      check_backward(sample.shape, sample.list);
    } else {
      check_forward(sample.shape, sample.type, sample.type, sample.list);
    }
  } catch (const CheckFailure& failure) {
    const std::string what = failure.what();
    return what.substr(what.find("task list: "));
  }
  return "";
}

/// Both directions complain, alike.
std::string complaint(const std::function<void(Sample&)>& change) {
  const std::string forward = complaint(change, false);
  EXPECT_EQ(complaint(change, true), forward);
  return forward;
}

std::string task_complaint(const std::function<void(Task&)>& change) {
  return complaint([&](Sample& sample) { change(sample.list.tasks[0]); });
}

TEST(TaskListTest, what_it_accepts_runs) {
  Sample sample;
  EXPECT_EQ(complaint([](Sample&) {}), "");
  reference_forward(sample.shape, sample.type, sample.type, sample.list);
  // All inputs are 0.25: so is every weighted mean of values. Row 3 is in no task.
  EXPECT_FLOAT_EQ(sample.arrays[1][4 * 64], 0.25F);
  EXPECT_FLOAT_EQ(sample.arrays[2][3 * 4], 0.25F);
  EXPECT_NE(sample.arrays[2][4 * 4], 0.25F);
  reference_backward(sample.shape, sample.type, sample.list);
}

TEST(TaskListTest, fields_that_a_pass_does_not_use_may_be_empty) {
  const auto no_dk = [](Sample& s) { s.list.keys[1].dk = {}; };
  EXPECT_EQ(complaint(no_dk, false), "");
  EXPECT_THAT(complaint(no_dk, true), HasSubstr("key buffer 1: dk has no memory"));
}

TEST(TaskListTest, empty_ranges_buffers_and_lists_are_fine) {
  EXPECT_EQ(complaint([](Sample& s) { s.list = {}; }), "");
  EXPECT_EQ(complaint([](Sample& s) { s.list.tasks[0].q_tokens = 0; }), "");
  EXPECT_EQ(complaint([](Sample& s) { s.list.tasks[0].keys.clear(); }), "");
  EXPECT_EQ(complaint([](Sample& s) { s.list.tasks[0].keys[0].tokens = 0; }), "");
  EXPECT_EQ(complaint([](Sample& s) {
              s.list.queries.push_back({}), s.list.keys.push_back({});
              s.list.tasks.push_back({.query_buffer = 2, .keys = {{.buffer = 2}}});
            }),
            "");
}

TEST(TaskListTest, ranges_beyond_their_buffer_are_named) {
  EXPECT_EQ(task_complaint([](Task& t) { t.q_row = 5; }),
            "task list: task 0: q_row is 5 with q_tokens 28, must be 0 .. 4: query buffer 0 has 32 "
            "tokens");
  EXPECT_EQ(task_complaint([](Task& t) { t.keys[1].row = 3; }),
            "task list: task 0: keys 1: row is 3 with tokens 30, must be 0 .. 2: key buffer 0 has "
            "32 tokens");
  EXPECT_EQ(task_complaint([](Task& t) { t.q_tokens = -1; }),
            "task list: task 0: q_tokens is -1, must be 0 .. 32");
  EXPECT_EQ(task_complaint([](Task& t) { t.query_buffer = 2; }),
            "task list: task 0: query_buffer is 2, must be 0 .. 1");
  for (const int64_t number : {int64_t{-1}, kHuge, std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(task_complaint([&](Task& t) { t.q_row = number; }), HasSubstr("q_row is"));
    EXPECT_THAT(task_complaint([&](Task& t) { t.q_tokens = number; }), HasSubstr("q_tokens"));
    EXPECT_THAT(task_complaint([&](Task& t) { t.q_position = number; }),
                HasSubstr("q_position is"));
    EXPECT_THAT(task_complaint([&](Task& t) { t.query_buffer = number; }),
                HasSubstr("query_buffer is"));
    EXPECT_THAT(task_complaint([&](Task& t) { t.keys[1].row = number; }),
                HasSubstr("keys 1: row is"));
    EXPECT_THAT(task_complaint([&](Task& t) { t.keys[1].tokens = number; }),
                HasSubstr("keys 1: tokens is"));
    EXPECT_THAT(task_complaint([&](Task& t) { t.keys[1].position = number; }),
                HasSubstr("keys 1: position is"));
    EXPECT_THAT(task_complaint([&](Task& t) { t.keys[1].buffer = number; }),
                HasSubstr("keys 1: buffer is"));
    if (number == -1) continue;  // unlimited
    EXPECT_THAT(task_complaint([&](Task& t) { t.mask.window_left = number; }),
                HasSubstr("window_left is"));
    EXPECT_THAT(task_complaint([&](Task& t) { t.mask.window_right = number; }),
                HasSubstr("window_right is"));
  }
}

TEST(TaskListTest, keys_must_ascend_in_position) {
  EXPECT_EQ(task_complaint([](Task& t) { t.keys[1].position = 7; }),
            "task list: task 0: keys 1: position is 7, must be at least 8, where keys 0 end");
  EXPECT_THAT(task_complaint([](Task& t) { std::swap(t.keys[0], t.keys[1]); }),
              HasSubstr("keys 1: position is 0, must be at least 38"));
}

TEST(TaskListTest, buffers_must_have_rows_apart) {
  const auto first_q = [](const std::function<void(Rows&)>& change) {
    return complaint([&](Sample& s) { change(s.list.queries[0].q); });
  };
  EXPECT_THAT(first_q([](Rows& q) { q.token_stride = -32; }),
              HasSubstr("token_stride is -32, must be at least 8"));
  EXPECT_THAT(first_q([](Rows& q) { q.head_stride = 7; }),
              HasSubstr("head_stride is 7, must be at least 8"));
  EXPECT_EQ(first_q([](Rows& q) { q.data = nullptr; }),
            "task list: query buffer 0: q has no memory for its 32 tokens");
  EXPECT_THAT(complaint([](Sample& s) { s.list.keys[1].tokens = -1; }),
              HasSubstr("key buffer 1: tokens is -1, must be 0 .. "));
  EXPECT_THAT(complaint([](Sample& s) { s.list.keys[1].tokens = kHuge; }),
              HasSubstr("key buffer 1: tokens is"));
}

TEST(TaskListTest, one_token_needs_no_stride_of_tokens) {
  EXPECT_EQ(complaint([](Sample& s) {
              s.list.queries[1].tokens = 1;
              s.list.queries[1].q.token_stride = -kHuge;
              s.list.tasks[1].q_tokens = 1;
            }),
            "");
}

TEST(TaskListTest, impossible_shapes_are_named) {
  const auto shape = [](const std::function<void(Shape&)>& change) {
    return complaint([&](Sample& s) { change(s.shape); });
  };
  EXPECT_EQ(shape([](Shape& s) { s.num_kv_heads = 3; }),
            "task list: num_heads is 4, must be a multiple of num_kv_heads, 3");
  EXPECT_THAT(shape([](Shape& s) { s.num_kv_heads = 0; }), HasSubstr("num_kv_heads is 0"));
  EXPECT_THAT(shape([](Shape& s) { s.num_heads = kHuge; }), HasSubstr("num_heads is"));
  EXPECT_THAT(shape([](Shape& s) { s.head_dim_qk = 12; }), HasSubstr("multiple of 8"));
  EXPECT_THAT(shape([](Shape& s) { s.head_dim_v = -8; }), HasSubstr("head_dim_v is -8"));
  EXPECT_THAT(shape([](Shape& s) { s.softmax_scale = std::nan(""); }), HasSubstr("softmax_scale"));
  EXPECT_THAT(shape([](Shape& s) { s.softcap = -1; }), HasSubstr("softcap is -1"));
}

}  // namespace
}  // namespace distca::kernels
