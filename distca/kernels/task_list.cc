#include "distca/kernels/task_list.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "distca/base/error.h"
#include "distca/kernels/rows.h"

namespace distca::kernels {
namespace {

constexpr int64_t kMostHeads = 1 << 20;
constexpr int64_t kMostDim = 1 << 20;

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  distca::detail::check_failed(__FILE__, __LINE__,
                               "task list: " + fmt::format(format, std::forward<Args>(args)...));
}

/// `what` and `args` name the value; they are put into words only where it is wrong.
template <typename... Args>
void expect_between(int64_t value, int64_t least, int64_t most, fmt::format_string<Args...> what,
                    Args&&... args) {
  if (value >= least && value <= most) return;
  fail("{} is {}, must be {} .. {}", fmt::format(what, std::forward<Args>(args)...), value, least,
       most);
}

// --- what a pass uses ----------------------------------------------------------------------------

/// A field of the buffers of a list.
template <typename Buffer>
struct Field {
  const char* name;
  Rows Buffer::*rows;
  int64_t dim;
};

struct Fields {
  std::vector<Field<QueryBuffer>> queries;
  std::vector<Field<KeyBuffer>> keys;
};

Fields fields_of(const Shape& shape, bool forward) {
  const int64_t d = shape.head_dim_qk, e = shape.head_dim_v;
  Fields fields{.queries = {{"q", &QueryBuffer::q, d}, {"lse", &QueryBuffer::lse, 1}},
                .keys = {{"k", &KeyBuffer::k, d}, {"v", &KeyBuffer::v, e}}};
  if (forward) {
    fields.queries.push_back({"o", &QueryBuffer::o, e});
    return fields;
  }
  fields.queries.insert(fields.queries.end(), {{"d_o", &QueryBuffer::d_o, e},
                                               {"delta", &QueryBuffer::delta, 1},
                                               {"dq", &QueryBuffer::dq, d}});
  fields.keys.insert(fields.keys.end(), {{"dk", &KeyBuffer::dk, d}, {"dv", &KeyBuffer::dv, e}});
  return fields;
}

// --- shapes, strides, tasks ----------------------------------------------------------------------

void expect_shape(const Shape& shape) {
  expect_between(shape.num_heads, 1, kMostHeads, "num_heads");
  expect_between(shape.num_kv_heads, 1, shape.num_heads, "num_kv_heads");
  if (shape.num_heads % shape.num_kv_heads != 0) {
    fail("num_heads is {}, must be a multiple of num_kv_heads, {}", shape.num_heads,
         shape.num_kv_heads);
  }
  for (const auto& [name, dim] :
       {std::pair("head_dim_qk", shape.head_dim_qk), std::pair("head_dim_v", shape.head_dim_v)}) {
    expect_between(dim, 8, kMostDim, "{}", name);
    if (dim % 8 != 0) fail("{} is {}, must be a multiple of 8", name, dim);
  }
  if (!std::isfinite(shape.softmax_scale)) {
    fail("softmax_scale is {}, must be a finite number", shape.softmax_scale);
  }
  if (!std::isfinite(shape.softcap) || shape.softcap < 0) {
    fail("softcap is {}, must be 0 (none) or a positive number", shape.softcap);
  }
}

template <typename Buffer, typename Fields>
void expect_buffers(const char* kind, const std::vector<Buffer>& buffers, int64_t heads,
                    const Fields& fields) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    const int64_t tokens = buffers[i].tokens;
    expect_between(tokens, 0, kMostPosition, "{} buffer {}: tokens", kind, i);
    if (tokens == 0) continue;
    for (const auto& field : fields) {
      const Rows& rows = buffers[i].*field.rows;
      if (rows.data == nullptr) {
        fail("{} buffer {}: {} has no memory for its {} tokens", kind, i, field.name, tokens);
      }
      if (heads > 1 && rows.head_stride < field.dim) {
        fail("{} buffer {}: {}: head_stride is {}, must be at least {}", kind, i, field.name,
             rows.head_stride, field.dim);
      }
      if (tokens > 1 && rows.token_stride < field.dim) {
        fail("{} buffer {}: {}: token_stride is {}, must be at least {}", kind, i, field.name,
             rows.token_stride, field.dim);
      }
    }
  }
}

void expect_queries(const TaskList& list, size_t i) {
  const Task& task = list.tasks[i];
  expect_between(task.query_buffer, 0, static_cast<int64_t>(list.queries.size()) - 1,
                 "task {}: query_buffer", i);
  const int64_t there = list.queries[task.query_buffer].tokens;
  expect_between(task.q_tokens, 0, there, "task {}: q_tokens", i);
  if (task.q_row < 0 || task.q_row > there - task.q_tokens) {
    fail("task {}: q_row is {} with q_tokens {}, must be 0 .. {}: query buffer {} has {} tokens", i,
         task.q_row, task.q_tokens, there - task.q_tokens, task.query_buffer, there);
  }
  expect_between(task.q_position, 0, kMostPosition - task.q_tokens, "task {}: q_position", i);
}

void expect_keys(const TaskList& list, size_t i) {
  const std::vector<KeyRange>& keys = list.tasks[i].keys;
  int64_t free = 0;  // the first position after the keys so far
  for (size_t j = 0; j < keys.size(); ++j) {
    const auto& [buffer, row, tokens, position] = keys[j];
    expect_between(buffer, 0, static_cast<int64_t>(list.keys.size()) - 1,
                   "task {}: keys {}: buffer", i, j);
    const int64_t there = list.keys[buffer].tokens;
    expect_between(tokens, 0, there, "task {}: keys {}: tokens", i, j);
    if (row < 0 || row > there - tokens) {
      fail(
          "task {}: keys {}: row is {} with tokens {}, must be 0 .. {}: key buffer {} has {} "
          "tokens",
          i, j, row, tokens, there - tokens, buffer, there);
    }
    expect_between(position, 0, kMostPosition - tokens, "task {}: keys {}: position", i, j);
    if (position < free) {
      fail("task {}: keys {}: position is {}, must be at least {}, where keys {} end", i, j,
           position, free, j - 1);
    }
    free = position + tokens;
  }
}

void expect_list(const Shape& shape, bool forward, const TaskList& list) {
  expect_shape(shape);
  const Fields fields = fields_of(shape, forward);
  expect_buffers("query", list.queries, shape.num_heads, fields.queries);
  expect_buffers("key", list.keys, shape.num_kv_heads, fields.keys);
  if (!list.tasks.empty() && list.queries.empty()) {
    fail("{} tasks, but no query buffer", list.tasks.size());
  }
  for (size_t i = 0; i < list.tasks.size(); ++i) {
    const Mask& mask = list.tasks[i].mask;
    expect_between(mask.window_left, -1, kMostPosition, "task {}: window_left", i);
    expect_between(mask.window_right, -1, kMostPosition, "task {}: window_right", i);
    expect_queries(list, i);
    expect_keys(list, i);
  }
}

}  // namespace

void check_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list) {
  if (o_type != type && o_type != accumulator_type(type)) {
    fail("O must have the type of Q or of LSE");
  }
  expect_list(shape, /*forward=*/true, list);
}

void check_backward(const Shape& shape, const TaskList& list) {
  expect_list(shape, /*forward=*/false, list);
}

}  // namespace distca::kernels
