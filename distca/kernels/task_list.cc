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

void expect_between(const std::string& what, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) fail("{} is {}, must be {} .. {}", what, value, least, most);
}

void expect_shape(const Shape& shape, ScalarType type, ScalarType o_type) {
  expect_between("num_heads", shape.num_heads, 1, kMostHeads);
  expect_between("num_kv_heads", shape.num_kv_heads, 1, shape.num_heads);
  if (shape.num_heads % shape.num_kv_heads != 0) {
    fail("num_heads is {}, must be a multiple of num_kv_heads, {}", shape.num_heads,
         shape.num_kv_heads);
  }
  for (const auto& [name, dim] :
       {std::pair("head_dim_qk", shape.head_dim_qk), std::pair("head_dim_v", shape.head_dim_v)}) {
    expect_between(name, dim, 8, kMostDim);
    if (dim % 8 != 0) fail("{} is {}, must be a multiple of 8", name, dim);
  }
  if (!std::isfinite(shape.softmax_scale)) {
    fail("softmax_scale is {}, must be a finite number", shape.softmax_scale);
  }
  if (!std::isfinite(shape.softcap) || shape.softcap < 0) {
    fail("softcap is {}, must be 0 (none) or a positive number", shape.softcap);
  }
  if (o_type != type && o_type != accumulator_type(type)) {
    fail("O must have the type of Q or of LSE");
  }
}

/// a * b + c, all at least 0; at most INT64_MAX.
int64_t multiply_add(int64_t a, int64_t b, int64_t c) {
  int64_t product = 0, sum = 0;
  const bool too_large =
      __builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(product, c, &sum);
  return too_large ? INT64_MAX : sum;
}

enum class Use { kRead, kWrite };

/// Memory of one field of one buffer, for the search for overlaps.
struct Memory {
  std::string name;
  Use use = Use::kRead;
  Range bytes{};
  int64_t stride = 0;  // bytes from token to token
  int64_t width = 0;   // bytes of a token's rows; more than the stride if heads lie apart
};

/// Whether rows of `a` and of `b` share memory; true also where strides differ and it is not known.
bool share_memory(const Memory& a, const Memory& b) {
  if (intersect(a.bytes, b.bytes).empty()) return false;
  if (a.stride != b.stride || a.width > a.stride || b.width > b.stride) return true;
  // The rows of `b` in the frame of `a`, and the other way round: one lies in the other's gaps.
  const int64_t phase = ((b.bytes.begin - a.bytes.begin) % a.stride + a.stride) % a.stride;
  return phase < a.width || phase + b.width > a.stride;
}

/// Checks the fields of buffers one by one, then against each other.
class Buffers {
 public:
  /// Returns the rows with strides that are never used set to something harmless.
  Rows add(const std::string& name, const BufferRows& field, int64_t tokens, int64_t heads,
           int64_t dim, ScalarType type, Use use) {
    Rows rows = dim == 1 ? number_rows(field.rows) : field.rows;
    if (tokens == 0) return {};
    if (rows.data == nullptr) fail("{} has no memory for its {} tokens", name, tokens);
    const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows.data));
    if (begin % element_bytes(type) != 0) {
      fail("{} is not aligned to its {} bytes an element", name, element_bytes(type));
    }
    expect_between(name + ": elements", field.elements, 0, kMostElements);
    if (heads == 1) rows.head_stride = dim;
    if (rows.head_stride < dim) {
      fail("{}: head_stride is {}, must be at least {}", name, rows.head_stride, dim);
    }
    const int64_t heads_end = multiply_add(heads - 1, rows.head_stride, dim);
    if (tokens == 1) rows.token_stride = heads_end;
    if (rows.token_stride < dim) {
      fail("{}: token_stride is {}, must be at least {}", name, rows.token_stride, dim);
    }
    const int64_t end = multiply_add(tokens - 1, rows.token_stride, heads_end);
    if (end > field.elements) {
      fail("{}: {} tokens with token_stride {} and head_stride {} end at element {}, there are {}",
           name, tokens, rows.token_stride, rows.head_stride, end, field.elements);
    }
    const bool apart = rows.token_stride >= heads_end ||
                       rows.head_stride >= multiply_add(tokens - 1, rows.token_stride, dim);
    if (use == Use::kWrite && !apart) {
      fail("{}: token_stride {} and head_stride {} put two rows in one place, and they are written",
           name, rows.token_stride, rows.head_stride);
    }
    const int64_t bytes = element_bytes(type);
    memory_.push_back(
        {name, use, {begin, begin + end * bytes}, rows.token_stride * bytes, heads_end * bytes});
    return rows;
  }

  void expect_written_alone() {
    std::sort(memory_.begin(), memory_.end(), [](const Memory& a, const Memory& b) {
      return std::tie(a.bytes, a.name) < std::tie(b.bytes, b.name);
    });
    for (size_t i = 0; i < memory_.size(); ++i) {
      const Memory& a = memory_[i];
      for (size_t j = i + 1; j < memory_.size(); ++j) {
        const Memory& b = memory_[j];
        if (b.bytes.begin >= a.bytes.end) break;
        if (a.use == Use::kRead && b.use == Use::kRead) continue;
        if (share_memory(a, b)) {
          fail("{} and {} overlap in memory, and {} is written", a.name, b.name,
               a.use == Use::kWrite ? a.name : b.name);
        }
      }
    }
  }

 private:
  std::vector<Memory> memory_;
};

void expect_tokens(const std::string& name, int64_t tokens) {
  expect_between(name + ": tokens", tokens, 0, kMostPosition);
}

/// Rows [row, row + tokens) of a buffer that has `there`.
void expect_rows(const std::string& where, const char* row_name, int64_t row,
                 const char* tokens_name, int64_t tokens, const std::string& buffer,
                 int64_t there) {
  expect_between(fmt::format("{}: {}", where, tokens_name), tokens, 0, there);
  if (row < 0 || row > there - tokens) {
    fail("{}: {} is {} with {} {}, must be 0 .. {}: {} has {} tokens", where, row_name, row,
         tokens_name, tokens, there - tokens, buffer, there);
  }
}

void expect_position(const std::string& where, int64_t position, int64_t tokens) {
  expect_between(where, position, 0, kMostPosition - tokens);
}

void expect_keys(const TaskList& list, const std::string& task,
                 const std::vector<ListedKeys>& keys) {
  int64_t free = 0;  // the first position after the keys so far
  for (size_t i = 0; i < keys.size(); ++i) {
    const ListedKeys& part = keys[i];
    const std::string where = fmt::format("{}: keys {}", task, i);
    expect_between(where + ": buffer", part.buffer, 0, static_cast<int64_t>(list.keys.size()) - 1);
    expect_rows(where, "row", part.row, "tokens", part.tokens,
                fmt::format("key buffer {}", part.buffer), list.keys[part.buffer].tokens);
    expect_position(where + ": position", part.position, part.tokens);
    if (part.position < free) {
      fail("{}: position is {}, must be at least {}, where keys {} end", where, part.position, free,
           i - 1);
    }
    free = part.position + part.tokens;
  }
}

void expect_tasks(const TaskList& list) {
  if (!list.tasks.empty() && list.queries.empty())
    fail("{} tasks, but no query buffer", list.tasks.size());
  for (size_t i = 0; i < list.tasks.size(); ++i) {
    const ListedTask& task = list.tasks[i];
    const std::string where = fmt::format("task {}", i);
    expect_between(where + ": query_buffer", task.query_buffer, 0,
                   static_cast<int64_t>(list.queries.size()) - 1);
    expect_rows(where, "q_row", task.q_row, "q_tokens", task.q_tokens,
                fmt::format("query buffer {}", task.query_buffer),
                list.queries[task.query_buffer].tokens);
    expect_position(where + ": q_position", task.q_position, task.q_tokens);
    expect_between(where + ": window_left", task.mask.window_left, -1, kMostPosition);
    expect_between(where + ": window_right", task.mask.window_right, -1, kMostPosition);
    expect_keys(list, where, task.keys);
  }
}

void expect_each_o_written_once(const TaskList& list) {
  std::vector<size_t> order;
  for (size_t i = 0; i < list.tasks.size(); ++i) {
    if (list.tasks[i].q_tokens > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const ListedTask &x = list.tasks[a], &y = list.tasks[b];
    return std::tie(x.query_buffer, x.q_row, a) < std::tie(y.query_buffer, y.q_row, b);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const auto [first, second] = std::minmax(order[i - 1], order[i]);
    const ListedTask &a = list.tasks[order[i - 1]], &b = list.tasks[order[i]];
    if (a.query_buffer == b.query_buffer && b.q_row < a.q_row + a.q_tokens) {
      fail("task {}: q_row: tasks {} and {} both write row {} of o in query buffer {}", second,
           first, second, b.q_row, b.query_buffer);
    }
  }
}

std::string field_name(const char* kind, size_t buffer, const char* field) {
  return fmt::format("{} buffer {}: {}", kind, buffer, field);
}

/// Checked buffers: the caller's, with harmless strides.
struct Resolver {
  Resolver(const Shape& shape_in, ScalarType type_in, ScalarType o_type_in, bool backward,
           const TaskList& list)
      : shape(shape_in), type(type_in), o_type(o_type_in) {
    expect_shape(shape, type, o_type);
    Buffers buffers;
    for (size_t i = 0; i < list.queries.size(); ++i) add(buffers, i, list.queries[i], backward);
    for (size_t i = 0; i < list.keys.size(); ++i) add(buffers, i, list.keys[i], backward);
    buffers.expect_written_alone();
    expect_tasks(list);
  }

  void add(Buffers& buffers, size_t i, const ListedQueryBuffer& from, bool backward) {
    expect_tokens(fmt::format("query buffer {}", i), from.tokens);
    const auto rows = [&](const char* name, const BufferRows& field, int64_t dim, ScalarType scalar,
                          Use use) {
      return buffers.add(field_name("query", i, name), field, from.tokens, shape.num_heads, dim,
                         scalar, use);
    };
    const ScalarType sum = accumulator_type(type);
    BackwardTask task{.q = rows("q", from.q, shape.head_dim_qk, type, Use::kRead)};
    task.lse = rows("lse", from.lse, 1, sum, backward ? Use::kRead : Use::kWrite);
    Rows o{};
    if (backward) {
      task.d_o = rows("d_o", from.d_o, shape.head_dim_v, type, Use::kRead);
      task.delta = rows("delta", from.delta, 1, sum, Use::kRead);
      task.dq = rows("dq", from.dq, shape.head_dim_qk, sum, Use::kWrite);
    } else {
      o = rows("o", from.o, shape.head_dim_v, o_type, Use::kWrite);
    }
    queries.push_back(task), outputs.push_back(o);
  }

  void add(Buffers& buffers, size_t i, const ListedKeyBuffer& from, bool backward) {
    expect_tokens(fmt::format("key buffer {}", i), from.tokens);
    const auto rows = [&](const char* name, const BufferRows& field, int64_t dim, ScalarType scalar,
                          Use use) {
      return buffers.add(field_name("key", i, name), field, from.tokens, shape.num_kv_heads, dim,
                         scalar, use);
    };
    const ScalarType sum = accumulator_type(type);
    keys.push_back({.k = rows("k", from.k, shape.head_dim_qk, type, Use::kRead),
                    .v = rows("v", from.v, shape.head_dim_v, type, Use::kRead)});
    gradients.emplace_back();
    if (!backward) return;
    gradients.back() = {.dk = rows("dk", from.dk, shape.head_dim_qk, sum, Use::kWrite),
                        .dv = rows("dv", from.dv, shape.head_dim_v, sum, Use::kWrite)};
  }

  KeyFragment fragment(const ListedKeys& part) const {
    return {.k = shifted(keys[part.buffer].k, type, part.row, 0),
            .v = shifted(keys[part.buffer].v, type, part.row, 0),
            .tokens = part.tokens,
            .position = part.position};
  }

  Shape shape;
  ScalarType type, o_type;
  std::vector<BackwardTask> queries;  // [query buffers] rows only
  std::vector<Rows> outputs;          // [query buffers] o
  std::vector<KeyFragment> keys;      // [key buffers] rows only
  std::vector<KeyGradient> gradients;
};

size_t key_parts(const TaskList& list) {
  size_t parts = 0;
  for (const ListedTask& task : list.tasks) parts += task.keys.size();
  return parts;
}

}  // namespace

ForwardBatch forward_batch(const Shape& shape, ScalarType type, ScalarType o_type,
                           const TaskList& list) {
  const Resolver resolver(shape, type, o_type, /*backward=*/false, list);
  expect_each_o_written_once(list);
  ForwardBatch batch;
  batch.fragments.reserve(key_parts(list));
  for (const ListedTask& task : list.tasks) {
    const size_t first = batch.fragments.size();
    for (const ListedKeys& part : task.keys) batch.fragments.push_back(resolver.fragment(part));
    const BackwardTask& rows = resolver.queries[task.query_buffer];
    batch.tasks.push_back({.q = shifted(rows.q, type, task.q_row, 0),
                           .o = shifted(resolver.outputs[task.query_buffer], o_type, task.q_row, 0),
                           .lse = shifted(rows.lse, accumulator_type(type), task.q_row, 0),
                           .q_tokens = task.q_tokens,
                           .q_position = task.q_position,
                           .keys = std::span(batch.fragments).subspan(first),
                           .mask = task.mask});
  }
  return batch;
}

BackwardBatch backward_batch(const Shape& shape, ScalarType type, const TaskList& list) {
  const Resolver resolver(shape, type, type, /*backward=*/true, list);
  const ScalarType sum = accumulator_type(type);
  BackwardBatch batch;
  batch.fragments.reserve(key_parts(list));
  batch.gradients.reserve(key_parts(list));
  for (const ListedTask& task : list.tasks) {
    const size_t first = batch.fragments.size();
    for (const ListedKeys& part : task.keys) {
      batch.fragments.push_back(resolver.fragment(part));
      const KeyGradient& gradient = resolver.gradients[part.buffer];
      batch.gradients.push_back({.dk = shifted(gradient.dk, sum, part.row, 0),
                                 .dv = shifted(gradient.dv, sum, part.row, 0)});
    }
    const BackwardTask& rows = resolver.queries[task.query_buffer];
    batch.tasks.push_back({.q = shifted(rows.q, type, task.q_row, 0),
                           .d_o = shifted(rows.d_o, type, task.q_row, 0),
                           .lse = shifted(rows.lse, sum, task.q_row, 0),
                           .delta = shifted(rows.delta, sum, task.q_row, 0),
                           .dq = shifted(rows.dq, sum, task.q_row, 0),
                           .q_tokens = task.q_tokens,
                           .q_position = task.q_position,
                           .keys = std::span(batch.fragments).subspan(first),
                           .key_gradients = std::span(batch.gradients).subspan(first),
                           .mask = task.mask});
  }
  return batch;
}

std::vector<ListedTask> varlen_tasks(std::span<const int64_t> cu_seqlens_q,
                                     std::span<const int64_t> cu_seqlens_k, const Mask& mask) {
  if (cu_seqlens_q.empty() || cu_seqlens_q.size() != cu_seqlens_k.size()) {
    fail("cu_seqlens_q has {} numbers and cu_seqlens_k {}, each must have one more than sequences",
         cu_seqlens_q.size(), cu_seqlens_k.size());
  }
  for (const auto& [name, bounds] :
       {std::pair("cu_seqlens_q", cu_seqlens_q), std::pair("cu_seqlens_k", cu_seqlens_k)}) {
    for (size_t i = 0; i < bounds.size(); ++i) {
      expect_between(fmt::format("{}[{}]", name, i), bounds[i], i == 0 ? 0 : bounds[i - 1],
                     i == 0 ? 0 : kMostPosition);
    }
  }
  std::vector<ListedTask> tasks;
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
