#include "tests/fuzz/task_list_fuzz.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/base/random.h"
#include "distca/kernels/bfloat16.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/reference/attention.h"
#include "distca/kernels/task_list.h"
#include "tests/fuzz/targets.h"

namespace distca::kernels::fuzz {
namespace {

// Lists with more pairs of a query row and a key than this are run, but not compared.
constexpr int64_t kMostComparedPairs = 20'000;

/// Numbers from bytes. They are zeros when the bytes are used up.
class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  int byte() {
    if (bytes_.empty()) return 0;
    const uint8_t first = bytes_[0];
    bytes_ = bytes_.subspan(1);
    return first;
  }
  bool flag(int one_in) { return byte() % one_in == one_in - 1; }

  /// A number in [least, most], or now and then any number.
  int64_t number(int64_t least, int64_t most) {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    constexpr std::array<int64_t, 12> kOdd{
        -1,   -8,       int64_t{1} << 31, int64_t{1} << 32, int64_t{1} << 40, kMostPosition - 1,
        kMax, kMax - 1, kMax / 2,         kMax / 4,         -kMax - 1,        -kMax / 4};
    const int kind = byte();
    if (kind >= 254) return kOdd[byte() % kOdd.size()];
    if (kind == 253) return most + 1;
    if (most <= least) return least;
    return least + (kind + (most - least > 200 ? 251 * byte() : 0)) % (most - least + 1);
  }

 private:
  std::span<const uint8_t> bytes_;
};

/// Elements in heap memory of exactly their size; a byte where there are none.
struct Block {
  Block(ScalarType type, int64_t elements)
      : type(type),
        elements(elements),
        memory(static_cast<size_t>(std::max<int64_t>(1, elements * element_bytes(type)))) {}

  std::byte* at(int64_t i) { return memory.data() + i * element_bytes(type); }
  float get(int64_t i) const {
    const auto load = [&](auto element) {
      std::memcpy(&element, memory.data() + i * element_bytes(type), sizeof element);
      return element;
    };
    return type == ScalarType::kFloat32 ? load(float{}) : to_float(load(BFloat16{}));
  }
  void set(int64_t i, float x) {
    const BFloat16 narrow = to_bfloat16(x);
    const bool wide = type == ScalarType::kFloat32;
    std::memcpy(at(i), wide ? static_cast<const void*>(&x) : &narrow,
                wide ? sizeof x : sizeof narrow);
  }

  ScalarType type;
  int64_t elements;
  std::vector<std::byte> memory;
};

/// A task list with its shape, types and memory, made from bytes.
class Scene {
 public:
  explicit Scene(Input input) : input_(input), values_(input_.byte()) {
    type = input_.flag(2) ? ScalarType::kBFloat16 : ScalarType::kFloat32;
    o_type = input_.flag(3) ? ScalarType::kFloat32 : type;
    wild_ = input_.flag(16);
    read_shape();
    const int64_t queries = input_.number(1, 3), keys = input_.number(1, 3);
    for (int64_t i = 0; i < std::clamp<int64_t>(queries, 1, 4); ++i) add_queries();
    for (int64_t i = 0; i < std::clamp<int64_t>(keys, 1, 4); ++i) add_keys();
    next_row_.resize(list.queries.size());
    while (!input_.empty() && list.tasks.size() < 8) add_task();
    if (queries < 1) list.queries.clear();
    if (keys < 1) list.keys.clear();
  }

  /// Returns true if the values are so tame that results can be compared with the reference's.
  bool tame() const { return !wild_ && std::fabs(shape.softmax_scale) <= 1 && shape.softcap == 0; }
  /// Returns true if there is as much memory as the list says.
  bool in_memory() const { return in_memory_; }
  std::vector<Block>& outputs() { return outputs_; }

  Shape shape;
  ScalarType type{}, o_type{};
  TaskList list;

 private:
  void read_shape() {
    shape.num_kv_heads = input_.number(1, 3);
    const int64_t group = input_.number(1, 5);
    const int64_t few = 1 << 20;
    const bool small = std::clamp(shape.num_kv_heads, -few, few) == shape.num_kv_heads &&
                       std::clamp(group, -few, few) == group;
    shape.num_heads = small ? shape.num_kv_heads * group : group;
    shape.head_dim_qk = dim();
    shape.head_dim_v = input_.flag(2) ? dim() : shape.head_dim_qk;
    shape.softmax_scale = input_.flag(20) ? input_.byte() * 1e30 : 0.1;
    shape.softcap = input_.flag(8) ? input_.byte() - 1 : 0;
  }
  int64_t dim() {
    const int64_t eighths = input_.number(1, 5);
    return eighths > 0 && eighths < 100 ? 8 * eighths : eighths;
  }

  double value() {
    if (wild_) return std::bit_cast<float>(static_cast<uint32_t>(values_.next()));
    return 2 * values_.uniform() - 1;
  }

  /// Memory for `tokens` rows, in one of several layouts; what is asked for cannot always be had.
  Rows rows(int64_t tokens, int64_t heads, int64_t dim, ScalarType scalar, bool written) {
    const auto modest = [&](int64_t x, int64_t most) {
      in_memory_ = in_memory_ && x <= most;
      return std::clamp<int64_t>(x, 0, most);
    };
    const int64_t there = modest(tokens, 200), h = modest(heads, 24), d = modest(dim, 48);
    Rows field{nullptr, h * d, d};
    const int layout = input_.byte();
    if (layout % 4 == 1) field.token_stride += layout % 32;
    if (layout % 4 == 2) field.token_stride = d, field.head_stride = there * d;
    const int64_t elements =
        there == 0 || h == 0 ? 0
                             : (there - 1) * field.token_stride + (h - 1) * field.head_stride + d;
    const int64_t shift = layout % 3 == 0 ? 1 : 0;  // elements: then it is aligned to one only
    Block block(scalar, elements + shift);
    for (int64_t i = 0; i < block.elements; ++i) block.set(i, static_cast<float>(value()));
    field.data = block.at(shift);
    if (layout == 255) field.data = nullptr;
    (written ? outputs_ : inputs_).push_back(std::move(block));
    return field;
  }

  void add_queries() {
    QueryBuffer& buffer = list.queries.emplace_back();
    buffer.tokens = input_.number(0, 160);
    const auto add = [&](int64_t dim, ScalarType scalar, bool written) {
      return rows(buffer.tokens, shape.num_heads, dim, scalar, written);
    };
    const ScalarType sum = ScalarType::kFloat32;
    buffer.q = add(shape.head_dim_qk, type, false);
    buffer.o = add(shape.head_dim_v, o_type, true);
    buffer.lse = add(1, sum, true);
    buffer.d_o = add(shape.head_dim_v, type, false);
    buffer.delta = add(1, sum, false);
    buffer.dq = add(shape.head_dim_qk, sum, true);
  }

  void add_keys() {
    KeyBuffer& buffer = list.keys.emplace_back();
    buffer.tokens = input_.number(0, 160);
    const auto add = [&](int64_t dim, ScalarType scalar, bool written) {
      return rows(buffer.tokens, shape.num_kv_heads, dim, scalar, written);
    };
    buffer.k = add(shape.head_dim_qk, type, false);
    buffer.v = add(shape.head_dim_v, type, false);
    buffer.dk = add(shape.head_dim_qk, ScalarType::kFloat32, true);
    buffer.dv = add(shape.head_dim_v, ScalarType::kFloat32, true);
  }

  void add_task() {
    Task& task = list.tasks.emplace_back();
    const auto last = [](const auto& all) { return static_cast<int64_t>(all.size()) - 1; };
    task.query_buffer = input_.number(0, last(list.queries));
    const bool known = task.query_buffer >= 0 && task.query_buffer <= last(list.queries);
    const size_t buffer = known ? task.query_buffer : 0;
    const int64_t there = std::clamp<int64_t>(list.queries[buffer].tokens, 0, 1000);
    task.q_row = input_.flag(6) ? input_.number(0, there) : next_row_[buffer];
    const int64_t left = there - std::clamp<int64_t>(task.q_row, 0, there);
    task.q_tokens = input_.number(0, left);
    next_row_[buffer] =
        std::clamp<int64_t>(task.q_row, 0, there) + std::clamp<int64_t>(task.q_tokens, 0, left);
    task.q_position = input_.number(0, 300);
    int64_t position = 0;
    for (int64_t parts = input_.byte() % 5; parts > 0; --parts) {
      KeyRange& keys = task.keys.emplace_back();
      keys.buffer = input_.number(0, last(list.keys));
      const bool key_known = keys.buffer >= 0 && keys.buffer <= last(list.keys);
      const int64_t rows =
          std::clamp<int64_t>(list.keys[key_known ? keys.buffer : 0].tokens, 0, 1000);
      keys.row = input_.number(0, rows);
      keys.tokens = input_.number(0, rows - std::clamp<int64_t>(keys.row, 0, rows));
      keys.position = position + input_.number(0, 70) % (int64_t{1} << 50);
      position = keys.position + std::clamp<int64_t>(keys.tokens, 0, 1000);
    }
    const int mask = input_.byte();
    task.mask.causal = mask % 2 == 0;
    if (mask % 5 == 1) task.mask.window_left = input_.number(0, 100);
    if (mask % 7 == 1) task.mask.window_right = input_.number(0, 100);
  }

  Input input_;
  Random values_;
  bool wild_ = false, in_memory_ = true;
  std::vector<Block> inputs_, outputs_;
  std::vector<int64_t> next_row_;  // [query buffers]
};

int64_t pairs(const Shape& shape, const TaskList& list) {
  int64_t sum = 0;
  for (const Task& task : list.tasks) {
    for (const KeyRange& keys : task.keys) sum += task.q_tokens * keys.tokens * shape.num_heads;
  }
  return sum;
}

/// Returns true if two tasks have a query row in common, whose outputs forward would write twice.
/// No list may do so, but no check looks for it.
bool writes_a_row_twice(const TaskList& list) {
  for (size_t i = 0; i < list.tasks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Task &a = list.tasks[i], &b = list.tasks[j];
      const Range rows_of_a{a.q_row, a.q_row + a.q_tokens};
      if (a.query_buffer == b.query_buffer &&
          !intersect(rows_of_a, {b.q_row, b.q_row + b.q_tokens}).empty()) {
        return true;
      }
    }
  }
  return false;
}

template <typename Check>
bool accepted(const Check& check) {
  try {
    check();
  } catch (const CheckFailure&) {
    return false;
  }
  return true;
}

/// Runs the kernel and, if `compare`, the reference on the same memory.
template <typename Kernel, typename Reference>
void run_both(std::vector<Block>& outputs, bool compare, float tolerance, const Kernel& kernel,
              const Reference& reference) {
  const std::vector<Block> before = outputs;
  kernel();
  if (!compare) return;
  const std::vector<Block> actual = outputs;
  for (size_t b = 0; b < outputs.size(); ++b)
    std::ranges::copy(before[b].memory, outputs[b].memory.begin());
  reference();
  for (size_t b = 0; b < outputs.size(); ++b) {
    const Block& expected = outputs[b];
    float largest = 1;
    for (int64_t i = 0; i < expected.elements; ++i) {
      if (std::isfinite(expected.get(i))) largest = std::max(largest, std::fabs(expected.get(i)));
    }
    for (int64_t i = 0; i < expected.elements; ++i) {
      const float x = actual[b].get(i), y = expected.get(i);
      DISTCA_CHECK(x == y || std::fabs(x - y) <= tolerance * largest,
                   "output {}, element {}: {}, the reference says {}", b, i, x, y);
    }
  }
}

ThreadPool& pool(int threads) {
  static ThreadPool one(1), two(2);
  return threads == 1 ? one : two;
}

Isa available_isa(int choice) {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (isa_available(isa)) all.push_back(isa);
  }
  return all[choice % all.size()];
}

}  // namespace

Outcome run_task_list(std::span<const uint8_t> bytes) {
  Input input(bytes);
  const Isa isa = available_isa(input.byte());
  ThreadPool& threads = pool(1 + input.byte() % 2);
  Scene scene(input);
  const Shape& shape = scene.shape;
  const ScalarType type = scene.type;
  // The tolerance separates right from wrong: values are at most 1, sums have some hundred terms.
  const float tolerance = type == ScalarType::kBFloat16 ? 0.03F : 2e-4F;
  Outcome outcome;
  if (!scene.in_memory() || !cpu_supports(shape, type)) return outcome;
  const TaskList& list = scene.list;
  outcome.forward = accepted([&] { check_forward(shape, type, scene.o_type, list); }) &&
                    !writes_a_row_twice(list);
  outcome.backward = accepted([&] { check_backward(shape, list); });
  outcome.compared = (outcome.forward || outcome.backward) && scene.tame() &&
                     pairs(shape, list) <= kMostComparedPairs;
  if (outcome.forward) {
    run_both(
        scene.outputs(), outcome.compared, tolerance,
        [&] { cpu_forward(shape, type, scene.o_type, list, threads, isa); },
        [&] { reference_forward(shape, type, scene.o_type, list); });
  }
  if (outcome.backward) {
    run_both(
        scene.outputs(), outcome.compared, tolerance,
        [&] { cpu_backward(shape, type, list, threads, isa); },
        [&] { reference_backward(shape, type, list); });
  }
  return outcome;
}

}  // namespace distca::kernels::fuzz

bool distca::fuzz::task_list(std::span<const uint8_t> bytes) {
  const auto [forward, backward, compared] = kernels::fuzz::run_task_list(bytes);
  return forward || backward;
}
