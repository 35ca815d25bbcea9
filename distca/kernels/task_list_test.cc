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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

/// Two query buffers and two key buffers of 32 tokens, heads 4:2, dims 8 and 16, and two tasks.
struct Sample {
  static constexpr int64_t kTokens = 32;
  Shape shape{
      .num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 8, .head_dim_v = 16, .softmax_scale = 0.3};
  ScalarType type = ScalarType::kFloat32;
  std::vector<std::vector<float>> arrays;
  TaskList list;
  ListMemory memory;  // [tokens, heads, dim] of each field

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
      const auto elements = [](int64_t heads, int64_t dim) { return kTokens * heads * dim; };
      memory.queries.push_back({.q = elements(4, 8),
                                .o = elements(4, 16),
                                .lse = elements(4, 1),
                                .d_o = elements(4, 16),
                                .delta = elements(4, 1),
                                .dq = elements(4, 8)});
      memory.keys.push_back(
          {.k = elements(2, 8), .v = elements(2, 16), .dk = elements(2, 8), .dv = elements(2, 16)});
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

/// What is said of the sample after `change`; "" if nothing.
std::string complaint(const std::function<void(Sample&)>& change, bool backward) {
  Sample sample;
  change(sample);
  try {
    if (backward) {
      backward_list(sample.shape, sample.type, sample.list, sample.memory);
    } else {
      forward_list(sample.shape, sample.type, sample.type, sample.list, sample.memory);
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    return error.what();
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
  reference_forward(
      sample.shape, sample.type, sample.type,
      forward_list(sample.shape, sample.type, sample.type, sample.list, sample.memory));
  // All inputs are 0.25: so is every weighted mean of values. Row 3 is in no task.
  EXPECT_FLOAT_EQ(sample.arrays[1][4 * 64], 0.25F);
  EXPECT_FLOAT_EQ(sample.arrays[2][3 * 4], 0.25F);
  EXPECT_NE(sample.arrays[2][4 * 4], 0.25F);
  reference_backward(sample.shape, sample.type,
                     backward_list(sample.shape, sample.type, sample.list, sample.memory));
}

TEST(TaskListTest, a_fault_of_our_own_list_is_a_check_that_names_it) {
  Sample sample;
  const auto check = [&] { check_backward(sample.shape, sample.type, sample.list); };
  EXPECT_NO_THROW(check());
  sample.list.tasks[0].q_row = 5;
  EXPECT_THAT(check, ThrowsMessage<CheckFailure>(HasSubstr("task 0: q_row is 5 with q_tokens 28")));
  sample.list.keys[1].dk = {};
  EXPECT_THAT(check, ThrowsMessage<CheckFailure>(HasSubstr("key buffer 1: dk has no memory")));
  sample.list.tasks.clear();
  EXPECT_NO_THROW(check_forward(sample.shape, sample.type, sample.type, sample.list));
}

TEST(TaskListTest, empty_ranges_buffers_and_lists_are_fine) {
  EXPECT_EQ(complaint([](Sample& s) { s.list = {}, s.memory = {}; }), "");
  EXPECT_EQ(complaint([](Sample& s) { s.list.tasks[0].q_tokens = 0; }), "");
  EXPECT_EQ(complaint([](Sample& s) { s.list.tasks[0].keys.clear(); }), "");
  EXPECT_EQ(complaint([](Sample& s) { s.list.tasks[0].keys[0].tokens = 0; }), "");
  EXPECT_EQ(complaint([](Sample& s) {
              s.list.queries.push_back({}), s.list.keys.push_back({});
              s.memory.queries.push_back({}), s.memory.keys.push_back({});
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

TEST(TaskListTest, two_tasks_may_not_write_one_row_of_o) {
  const auto share = [](Sample& s) { s.list.tasks[1].query_buffer = 0; };
  EXPECT_EQ(complaint(share, false),
            "task list: task 1: q_row: tasks 0 and 1 both write row 4 of o in query buffer 0");
  EXPECT_EQ(complaint(share, true), "");  // they add to dq
  EXPECT_EQ(complaint(
                [](Sample& s) {
                  s.list.tasks[1].query_buffer = 0;
                  s.list.tasks[1].q_tokens = 4;
                },
                false),
            "");
}

TEST(TaskListTest, buffers_must_hold_their_rows) {
  const auto first_q = [](const std::function<void(Rows&, int64_t & elements)>& change) {
    return complaint([&](Sample& s) { change(s.list.queries[0].q, s.memory.queries[0].q); });
  };
  EXPECT_EQ(first_q([](Rows&, int64_t& elements) { elements -= 1; }),
            "task list: query buffer 0: q: 32 tokens with token_stride 32 and head_stride 8 end at "
            "element 1024, there are 1023");
  EXPECT_THAT(first_q([](Rows& q, int64_t&) { q.token_stride = kHuge / 2; }),
              HasSubstr("query buffer 0: q: 32 tokens with token_stride"));
  EXPECT_THAT(first_q([](Rows& q, int64_t&) { q.head_stride = kHuge; }), HasSubstr("end at"));
  EXPECT_THAT(first_q([](Rows& q, int64_t&) { q.token_stride = -32; }),
              HasSubstr("token_stride is -32, must be at least 8"));
  EXPECT_THAT(first_q([](Rows& q, int64_t&) { q.head_stride = 7; }),
              HasSubstr("head_stride is 7, must be at least 8"));
  EXPECT_THAT(first_q([](Rows&, int64_t& elements) { elements = kHuge; }),
              HasSubstr("elements is"));
  EXPECT_EQ(first_q([](Rows& q, int64_t&) { q.data = nullptr; }),
            "task list: query buffer 0: q has no memory for its 32 tokens");
  EXPECT_EQ(first_q([](Rows& q, int64_t& elements) {
              q.data = static_cast<std::byte*>(q.data) + 2;
              elements -= 1;
              q.token_stride = 8;
            }),
            "task list: query buffer 0: q is not aligned to its 4 bytes an element");
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

TEST(TaskListTest, what_is_written_lies_alone) {
  EXPECT_EQ(
      complaint([](Sample& s) { s.list.queries[1].o = s.list.queries[0].o; }, false),
      "task list: query buffer 0: o and query buffer 1: o overlap in memory, and query buffer "
      "0: o is written");
  EXPECT_THAT(complaint(
                  [](Sample& s) {
                    s.list.keys[0].dk = s.list.queries[1].q;
                    s.memory.keys[0].dk = s.memory.queries[1].q;
                  },
                  true),
              AllOf(HasSubstr("query buffer 1: q"), HasSubstr("key buffer 0: dk is written")));
  EXPECT_THAT(complaint(
                  [](Sample& s) {
                    s.list.queries[0].o.token_stride = 16;
                    s.list.queries[0].o.head_stride = 16;
                  },
                  false),
              HasSubstr("put two rows in one place"));
  // Reading one memory twice is fine.
  EXPECT_EQ(complaint([](Sample& s) { s.list.keys[1].k = s.list.keys[0].k; }), "");
}

TEST(TaskListTest, fields_may_lie_between_each_others_tokens) {
  // dk and dv in [tokens, dk then dv].
  std::vector<float> both(32 * 48);
  const auto interleave = [&](Sample& s, int64_t offset) {
    s.list.keys[0].dk = {both.data(), 48, 8}, s.memory.keys[0].dk = 32 * 48;
    s.list.keys[0].dv = {both.data() + offset, 48, 16}, s.memory.keys[0].dv = 32 * 48 - offset;
  };
  EXPECT_EQ(complaint([&](Sample& s) { interleave(s, 16); }, true), "");
  EXPECT_THAT(complaint([&](Sample& s) { interleave(s, 15); }, true),
              HasSubstr("overlap in memory"));
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

TEST(TaskListTest, packed_sequences_are_aligned_bottom_right) {
  const int64_t q[] = {0, 3, 3, 10}, k[] = {0, 8, 12, 14};
  const std::vector<Task> tasks = varlen_tasks(q, k, {.causal = true});
  ASSERT_EQ(tasks.size(), 3u);
  for (size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_EQ(tasks[i].q_row, q[i]);
    EXPECT_EQ(tasks[i].q_tokens, q[i + 1] - q[i]);
    ASSERT_EQ(tasks[i].keys.size(), 1u);
    EXPECT_EQ(tasks[i].keys[0].row, k[i]);
    EXPECT_EQ(tasks[i].keys[0].tokens, k[i + 1] - k[i]);
    EXPECT_EQ(tasks[i].q_position + tasks[i].q_tokens,
              tasks[i].keys[0].position + tasks[i].keys[0].tokens);
    EXPECT_GE(std::min(tasks[i].q_position, tasks[i].keys[0].position), 0);
  }
}

TEST(TaskListTest, wrong_cumulative_lengths_are_named) {
  const auto complain = [](std::vector<int64_t> q, std::vector<int64_t> k) -> std::string {
    try {
      varlen_tasks(q, k);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(complain({0, 3}, {0, 3}), "");
  EXPECT_EQ(complain({0}, {0}), "");
  EXPECT_THAT(complain({}, {}), HasSubstr("one more than sequences"));
  EXPECT_THAT(complain({0, 3}, {0, 3, 4}), HasSubstr("cu_seqlens_q has 2 numbers"));
  EXPECT_THAT(complain({1, 3}, {0, 3}), HasSubstr("cu_seqlens_q[0] is 1, must be 0 .. 0"));
  EXPECT_THAT(complain({0, 3, 2}, {0, 3, 4}), HasSubstr("cu_seqlens_q[2] is 2, must be 3 .. "));
  EXPECT_THAT(complain({0, 3}, {0, kHuge}), HasSubstr("cu_seqlens_k[1] is"));
}

}  // namespace
}  // namespace distca::kernels
