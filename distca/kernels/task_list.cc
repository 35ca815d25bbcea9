#include "distca/kernels/task_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/kernels/rows.h"

namespace distca::kernels {
namespace {

constexpr int64_t kMostHeads = 1 << 20;
constexpr int64_t kMostDim = 1 << 20;
constexpr int64_t kMostElements = int64_t{1} << 48;

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kData, "task list: {}", fmt::format(format, std::forward<Args>(args)...));
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
template <typename Buffer, typename Memory>
struct Field {
  const char* name;
  Rows Buffer::*rows;
  int64_t Memory::*elements;
  int64_t dim;
  ScalarType type;
  bool written;
};

struct Pass {
  Shape shape;
  ScalarType type, o_type;
  std::vector<Field<QueryBuffer, QueryMemory>> queries;
  std::vector<Field<KeyBuffer, KeyMemory>> keys;
};

Pass forward_pass(const Shape& s, ScalarType type, ScalarType o_type) {
  const int64_t d = s.head_dim_qk, e = s.head_dim_v;
  const ScalarType sum = accumulator_type(type);
  return {.shape = s,
          .type = type,
          .o_type = o_type,
          .queries = {{"q", &QueryBuffer::q, &QueryMemory::q, d, type, false},
                      {"lse", &QueryBuffer::lse, &QueryMemory::lse, 1, sum, true},
                      {"o", &QueryBuffer::o, &QueryMemory::o, e, o_type, true}},
          .keys = {{"k", &KeyBuffer::k, &KeyMemory::k, d, type, false},
                   {"v", &KeyBuffer::v, &KeyMemory::v, e, type, false}}};
}

Pass backward_pass(const Shape& s, ScalarType type) {
  const int64_t d = s.head_dim_qk, e = s.head_dim_v;
  const ScalarType sum = accumulator_type(type);
  return {.shape = s,
          .type = type,
          .o_type = type,
          .queries = {{"q", &QueryBuffer::q, &QueryMemory::q, d, type, false},
                      {"lse", &QueryBuffer::lse, &QueryMemory::lse, 1, sum, false},
                      {"d_o", &QueryBuffer::d_o, &QueryMemory::d_o, e, type, false},
                      {"delta", &QueryBuffer::delta, &QueryMemory::delta, 1, sum, false},
                      {"dq", &QueryBuffer::dq, &QueryMemory::dq, d, sum, true}},
          .keys = {{"k", &KeyBuffer::k, &KeyMemory::k, d, type, false},
                   {"v", &KeyBuffer::v, &KeyMemory::v, e, type, false},
                   {"dk", &KeyBuffer::dk, &KeyMemory::dk, d, sum, true},
                   {"dv", &KeyBuffer::dv, &KeyMemory::dv, e, sum, true}}};
}

// --- shapes, strides, tasks ----------------------------------------------------------------------

void expect_shape(const Pass& pass) {
  const Shape& shape = pass.shape;
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
  if (pass.o_type != pass.type && pass.o_type != accumulator_type(pass.type)) {
    fail("O must have the type of Q or of LSE");
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

void expect_list(const Pass& pass, const TaskList& list) {
  expect_shape(pass);
  expect_buffers("query", list.queries, pass.shape.num_heads, pass.queries);
  expect_buffers("key", list.keys, pass.shape.num_kv_heads, pass.keys);
  if (!list.tasks.empty() && list.queries.empty()) {
    fail("{} tasks, but no query buffer", list.tasks.size());
  }
  for (size_t i = 0; i < list.tasks.size(); ++i) {
    expect_queries(list, i);
    expect_keys(list, i);
  }
}

/// A fault of a list of our own.
void check_list(const Pass& pass, const TaskList& list) {
  std::string fault;
  try {
    expect_list(pass, list);
  } catch (const Error& error) {
    fault = error.what();
  }
  DISTCA_CHECK(fault.empty(), "{}", fault);
}

// --- memory --------------------------------------------------------------------------------------

/// a * b + c, all at least 0; at most INT64_MAX.
int64_t multiply_add(int64_t a, int64_t b, int64_t c) {
  int64_t product = 0, sum = 0;
  const bool too_large =
      __builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(product, c, &sum);
  return too_large ? INT64_MAX : sum;
}

/// Memory of one field of one buffer, for the search for overlaps.
struct Extent {
  std::string name;
  bool written = false;
  Range bytes{};
  int64_t stride = 0;  // bytes from token to token
  int64_t width = 0;   // bytes of a token's rows; more than the stride if heads lie apart
};

/// Whether rows of `a` and of `b` share memory; true also where strides differ and it is not known.
bool share_memory(const Extent& a, const Extent& b) {
  if (intersect(a.bytes, b.bytes).empty()) return false;
  if (a.stride != b.stride || a.width > a.stride || b.width > b.stride) return true;
  // The rows of `b` in the frame of `a`, and the other way round: one lies in the other's gaps.
  const int64_t phase = ((b.bytes.begin - a.bytes.begin) % a.stride + a.stride) % a.stride;
  return phase < a.width || phase + b.width > a.stride;
}

/// Sets strides of the rows that are never used to something harmless.
Extent expect_memory(std::string name, Rows& rows, int64_t elements, int64_t tokens, int64_t heads,
                     int64_t dim, ScalarType type, bool written) {
  const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows.data));
  const int64_t bytes = element_bytes(type);
  if (begin % bytes != 0) fail("{} is not aligned to its {} bytes an element", name, bytes);
  expect_between(elements, 0, kMostElements, "{}: elements", name);
  if (heads == 1) rows.head_stride = dim;
  const int64_t heads_end = multiply_add(heads - 1, rows.head_stride, dim);
  if (tokens == 1) rows.token_stride = heads_end;
  const int64_t end = multiply_add(tokens - 1, rows.token_stride, heads_end);
  if (end > elements) {
    fail("{}: {} tokens with token_stride {} and head_stride {} end at element {}, there are {}",
         name, tokens, rows.token_stride, rows.head_stride, end, elements);
  }
  const bool apart = rows.token_stride >= heads_end ||
                     rows.head_stride >= multiply_add(tokens - 1, rows.token_stride, dim);
  if (written && !apart) {
    fail("{}: token_stride {} and head_stride {} put two rows in one place, and they are written",
         name, rows.token_stride, rows.head_stride);
  }
  return {std::move(name),
          written,
          {begin, begin + end * bytes},
          rows.token_stride * bytes,
          heads_end * bytes};
}

template <typename Buffer, typename Memory, typename Fields>
void add_extents(const char* kind, std::vector<Buffer>& buffers, const std::vector<Memory>& memory,
                 int64_t heads, const Fields& fields, std::vector<Extent>& extents) {
  DISTCA_CHECK_EQ(memory.size(), buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].tokens == 0) continue;
    for (const auto& field : fields) {
      extents.push_back(expect_memory(fmt::format("{} buffer {}: {}", kind, i, field.name),
                                      buffers[i].*field.rows, memory[i].*field.elements,
                                      buffers[i].tokens, heads, field.dim, field.type,
                                      field.written));
    }
  }
}

void expect_written_alone(std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.bytes, a.name) < std::tie(b.bytes, b.name);
  });
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& a = extents[i];
    for (size_t j = i + 1; j < extents.size(); ++j) {
      const Extent& b = extents[j];
      if (b.bytes.begin >= a.bytes.end) break;
      if ((a.written || b.written) && share_memory(a, b)) {
        fail("{} and {} overlap in memory, and {} is written", a.name, b.name,
             a.written ? a.name : b.name);
      }
    }
  }
}

TaskList outside_list(const Pass& pass, TaskList list, const ListMemory& memory) {
  expect_list(pass, list);
  for (size_t i = 0; i < list.tasks.size(); ++i) {
    const Mask& mask = list.tasks[i].mask;
    expect_between(mask.window_left, -1, kMostPosition, "task {}: window_left", i);
    expect_between(mask.window_right, -1, kMostPosition, "task {}: window_right", i);
  }
  std::vector<Extent> extents;
  add_extents("query", list.queries, memory.queries, pass.shape.num_heads, pass.queries, extents);
  add_extents("key", list.keys, memory.keys, pass.shape.num_kv_heads, pass.keys, extents);
  expect_written_alone(std::move(extents));
  return list;
}

void expect_each_o_written_once(const TaskList& list) {
  std::vector<size_t> order;
  for (size_t i = 0; i < list.tasks.size(); ++i) {
    if (list.tasks[i].q_tokens > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Task &x = list.tasks[a], &y = list.tasks[b];
    return std::tie(x.query_buffer, x.q_row, a) < std::tie(y.query_buffer, y.q_row, b);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const auto [first, second] = std::minmax(order[i - 1], order[i]);
    const Task &a = list.tasks[order[i - 1]], &b = list.tasks[order[i]];
    if (a.query_buffer == b.query_buffer && b.q_row < a.q_row + a.q_tokens) {
      fail("task {}: q_row: tasks {} and {} both write row {} of o in query buffer {}", second,
           first, second, b.q_row, b.query_buffer);
    }
  }
}

}  // namespace

void check_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list) {
  check_list(forward_pass(shape, type, o_type), list);
}

void check_backward(const Shape& shape, ScalarType type, const TaskList& list) {
  check_list(backward_pass(shape, type), list);
}

TaskList forward_list(const Shape& shape, ScalarType type, ScalarType o_type, TaskList list,
                      const ListMemory& memory) {
  list = outside_list(forward_pass(shape, type, o_type), std::move(list), memory);
  expect_each_o_written_once(list);
  return list;
}

TaskList backward_list(const Shape& shape, ScalarType type, TaskList list,
                       const ListMemory& memory) {
  return outside_list(backward_pass(shape, type), std::move(list), memory);
}

std::vector<Task> varlen_tasks(std::span<const int64_t> cu_seqlens_q,
                               std::span<const int64_t> cu_seqlens_k, const Mask& mask) {
  if (cu_seqlens_q.empty() || cu_seqlens_q.size() != cu_seqlens_k.size()) {
    fail("cu_seqlens_q has {} numbers and cu_seqlens_k {}, each must have one more than sequences",
         cu_seqlens_q.size(), cu_seqlens_k.size());
  }
  for (const auto& [name, bounds] :
       {std::pair("cu_seqlens_q", cu_seqlens_q), std::pair("cu_seqlens_k", cu_seqlens_k)}) {
    for (size_t i = 0; i < bounds.size(); ++i) {
      expect_between(bounds[i], i == 0 ? 0 : bounds[i - 1], i == 0 ? 0 : kMostPosition, "{}[{}]",
                     name, i);
    }
  }
  std::vector<Task> tasks;
  for (size_t i = 0; i + 1 < cu_seqlens_q.size(); ++i) {
    const int64_t q_tokens = cu_seqlens_q[i + 1] - cu_seqlens_q[i];
    const int64_t k_tokens = cu_seqlens_k[i + 1] - cu_seqlens_k[i];
    // Masks know differences of positions only: the shorter one is moved.
    tasks.push_back({.q_row = cu_seqlens_q[i],
                     .q_tokens = q_tokens,
                     .q_position = std::max<int64_t>(k_tokens - q_tokens, 0),
                     .keys = {{.row = cu_seqlens_k[i],
                               .tokens = k_tokens,
                               .position = std::max<int64_t>(q_tokens - k_tokens, 0)}},
                     .mask = mask});
  }
  return tasks;
}

}  // namespace distca::kernels
