// Stands in for a kernel of FlashAttention 4 (runtime/cuda/compiled_kernels.h), on host memory and
// in double: the C interface of TVM FFI, the arguments and the memory that a compiled kernel wants.
// It checks all that a kernel checks, and more: that backward's sums begin at zero, and that
// nothing lies outside its tensor. Which kernel it is follows from the number of arguments.
// STANDIN_CAUSAL decides the mask where no window is given.

#include "distca/runtime/cuda/test_kernels/standin_arguments.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "distca/base/env.h"

namespace distca::standin {

constexpr int64_t kQueryTile = STANDIN_CAUSAL ? 64 : 80, kKeyTile = 128;
constexpr int64_t kFar = int64_t{1} << 40;

namespace {
thread_local void* stream = &stream;  // until one is given
thread_local std::string error;
}  // namespace

/// False where calls alone count: all but the numbers is checked.
bool computes() { return !env_string("DISTCA_STAND_INS_COMPUTE_NOTHING"); }

struct Window {
  int64_t left = kFar, right = kFar;
};

Window window_of(Arguments& arguments) {
  if (arguments.is_none()) {
    arguments.none(2);
    return {.right = STANDIN_CAUSAL ? 0 : kFar};
  }
  const int64_t left = arguments.integer();
  return {.left = left, .right = arguments.integer()};
}

/// The sequences of a call: rows of queries, and of keys.
struct Sequences {
  Sequences(const Tensor& starts_q, const Tensor& starts_k)
      : starts_q_(starts_q), starts_k_(starts_k) {
    want(count() <= 256, "more sequences than a kernel without tables takes");
    want(starts_q.at(0) == 0, "queries do not begin at 0");
  }
  int64_t count() const { return starts_q_.size(0) - 1; }
  int64_t query(int64_t b) const { return static_cast<int64_t>(starts_q_.at(b)); }
  int64_t queries(int64_t b) const { return query(b + 1) - query(b); }
  int64_t key(int64_t b) const { return static_cast<int64_t>(starts_k_.at(b)); }
  int64_t keys(int64_t b) const { return key(b + 1) - key(b); }
  const Tensor &starts_q_, &starts_k_;
};

/// A compiled kernel adds the limits of a window to rows in 32 bits.
void want_near(const Window& window, int64_t rows) {
  want(window.left == kFar || window.left < rows, "a left limit that reaches all keys");
  want(window.right == kFar || window.right <= rows, "a right limit beyond all keys");
}

/// calls visit(j) for the keys that query i of n sees of m.
template <typename Visit>
void for_each_key(int64_t i, int64_t n, int64_t m, const Window& window, const Visit& visit) {
  const int64_t place = i + m - n;
  const int64_t first = std::max<int64_t>(0, place - window.left);
  for (int64_t j = first; j < m && j <= place + window.right; ++j) visit(j);
}

double score(const Tensor& q, const Tensor& k, int64_t i, int64_t j, int64_t head, int64_t group) {
  double sum = 0;
  for (int64_t d = 0; d < q.size(2); ++d) sum += q.at(i, head, d) * k.at(j, head / group, d);
  return sum;
}

void want_like(const Tensor& o, const Tensor& q, const Tensor& v, const char* what) {
  want(o.size(0) == q.size(0) && o.size(1) == q.size(1) && o.size(2) == v.size(2), what);
}

/// Keys are loaded in whole tiles: those behind a sequence's last have the probability 0, and 0
/// times what is not finite is no number.
void want_whole_tile(const Tensor& v, int64_t begin, int64_t keys) {
  const int64_t end = std::min(v.size(0), begin + (keys + kKeyTile - 1) / kKeyTile * kKeyTile);
  for (int64_t row = begin + keys; row < end; ++row) {
    for (int64_t head = 0; head < v.size(1); ++head) {
      for (int64_t d = 0; d < v.size(2); ++d)
        want(std::isfinite(v.at(row, head, d)), "a tile of keys has a row that nobody wrote");
    }
  }
}

void forward(Arguments arguments) {
  const Tensor q = arguments.rows("q"), k = arguments.rows("k"), v = arguments.rows("v");
  const Tensor o = arguments.rows("o");
  want_like(o, q, v, "o has another size");
  const Tensor lse = arguments.packed(Type::kFloat, {q.size(1), q.size(0)}, "lse");
  const double scale = arguments.number();
  const Tensor starts_q = arguments.packed(Type::kInt, {-1}, "cu_seqlens_q");
  const Tensor starts_k = arguments.packed(Type::kInt, {starts_q.size(0)}, "cu_seqlens_k");
  arguments.none();
  const Tensor used = arguments.packed(Type::kInt, {starts_q.size(0) - 1}, "seqused_k");
  arguments.none();
  const Window window = window_of(arguments);
  arguments.none(2);
  arguments.list_of_none(2);
  arguments.none(2);
  arguments.end();
  const Sequences all(starts_q, starts_k);
  const int64_t group = q.size(1) / k.size(1);
  int64_t most = 0;
  for (int64_t b = 0; b < all.count(); ++b)
    most = std::max({most, all.queries(b), static_cast<int64_t>(used.at(b))});
  want_near(window, most);
  for (int64_t b = 0; computes() && b < all.count(); ++b) {
    const int64_t n = all.queries(b), m = static_cast<int64_t>(used.at(b));
    want_whole_tile(v, all.key(b), m);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t head = 0; head < q.size(1); ++head) {
        const int64_t row = all.query(b) + i;
        double most = -std::numeric_limits<double>::infinity(), sum = 0;
        std::vector<double> scores, result(static_cast<size_t>(v.size(2)), 0);
        std::vector<int64_t> seen;
        for_each_key(i, n, m, window, [&](int64_t j) {
          seen.push_back(all.key(b) + j);
          scores.push_back(scale * score(q, k, row, seen.back(), head, group));
          most = std::max(most, scores.back());
        });
        for (size_t at = 0; at < seen.size(); ++at) {
          const double p = std::exp(scores[at] - most);
          sum += p;
          for (size_t d = 0; d < result.size(); ++d)
            result[d] += p * v.at(seen[at], head / group, static_cast<int64_t>(d));
        }
        for (size_t d = 0; d < result.size(); ++d)
          o.put(sum > 0 ? result[d] / sum : 0, row, head, static_cast<int64_t>(d));
        lse.put(most + std::log(sum), head, row);
      }
    }
  }
}

int64_t padded(int64_t rows, int64_t tile, int64_t sequences) {
  return (rows + tile * (sequences + 1) - 1) / tile * tile;
}
/// The row of sequence b among rows that are padded.
int64_t padded_begin(int64_t begin, int64_t tile, int64_t b) {
  return (begin + tile * b) / tile * tile;
}

/// Turns of blocks, of which each has one, and which begin at zero.
void want_order(Arguments& arguments, const std::vector<int64_t>& sizes, bool is_wanted) {
  if (!is_wanted) return arguments.none();
  const Tensor order = arguments.packed(Type::kInt, {sizes[0], sizes[1], -1, sizes[3]}, "an order");
  want(order.size(2) >= sizes[2], "an order of too few blocks");
  order.want_zeros("an order");
}

void want_orders(Arguments& arguments, const Sequences& all, int64_t heads, int64_t key_heads) {
  int64_t most_queries = 0, most_keys = 0;
  for (int64_t b = 0; b < all.count(); ++b) {
    most_queries = std::max(most_queries, all.queries(b));
    most_keys = std::max(most_keys, all.keys(b));
  }
  const bool is_ordered = !arguments.is_none();
  const auto blocks = [](int64_t rows, int64_t tile) { return (rows + tile - 1) / tile; };
  want_order(arguments, {all.count(), heads, blocks(most_queries, kQueryTile), 1}, is_ordered);
  for (int i = 0; i < 2; ++i)
    want_order(arguments, {all.count(), key_heads, blocks(most_keys, kKeyTile), 2},
               is_ordered && heads > key_heads);
}

/// Rows of a block behind a sequence's last, which have another sequence's queries: the kernel
/// computes them, too.
void want_padding(const Tensor& scaled, const Tensor& delta, int64_t begin, int64_t end) {
  for (int64_t head = 0; head < scaled.size(0); ++head) {
    for (int64_t row = begin; row < end; ++row)
      want(std::isinf(scaled.at(head, row)) && scaled.at(head, row) > 0 &&
               std::isfinite(delta.at(head, row)),
           "padding has a probability");
  }
}

/// The tensors and numbers of a call of backward.
struct Backward {
  const Tensor &q, &k, &v, &d_o;
  Tensor scaled, delta, dq, dk, dv;
  double scale;
  Window window;
  int64_t group() const { return q.size(1) / k.size(1); }

  /// Where each head has keys of its own, dK and dV are results, of all keys of the sequence.
  void add(const Tensor& sums, int64_t head, int64_t key, int64_t padded_key, int64_t d,
           double number) const {
    if (group() > 1) return sums.add(number, head, padded_key * q.size(2) + d);
    sums.put(sums.at(key, head, d) + number, key, head, d);
  }
  void pair(int64_t head, int64_t row, int64_t padded_row, int64_t key, int64_t padded_key) const {
    const int64_t key_head = head / group(), dims = q.size(2);
    const double lse = scaled.at(head, padded_row) * std::log(2.);
    const double p = std::exp(scale * score(q, k, row, key, head, group()) - lse);
    double dp = -delta.at(head, padded_row);
    for (int64_t d = 0; d < dims; ++d) dp += d_o.at(row, head, d) * v.at(key, key_head, d);
    for (int64_t d = 0; d < dims; ++d) {
      // The scale comes behind, where sums are converted.
      const double own = group() == 1 ? scale : 1;
      dq.add(p * dp * k.at(key, key_head, d), head, padded_row * dims + d);
      add(dk, key_head, key, padded_key, d, own * p * dp * q.at(row, head, d));
      add(dv, key_head, key, padded_key, d, p * d_o.at(row, head, d));
    }
  }
  void sequence(const Sequences& all, int64_t b) const {
    const int64_t n = all.queries(b), m = all.keys(b);
    const int64_t first = padded_begin(all.query(b), kQueryTile, b);
    const int64_t first_key = padded_begin(all.key(b), kKeyTile, b);
    want_padding(scaled, delta, first + n, first + (n + kQueryTile - 1) / kQueryTile * kQueryTile);
    for (int64_t head = 0; head < q.size(1); ++head) {
      for (int64_t j = 0; group() == 1 && j < m; ++j) {
        for (int64_t d = 0; d < q.size(2); ++d)
          dk.put(0, all.key(b) + j, head, d), dv.put(0, all.key(b) + j, head, d);
      }
      for (int64_t i = 0; i < n; ++i) {
        for_each_key(i, n, m, window, [&](int64_t j) {
          pair(head, all.query(b) + i, first + i, all.key(b) + j, first_key + j);
        });
      }
    }
  }
};

void backward(Arguments arguments) {
  const Tensor q = arguments.rows("q"), k = arguments.rows("k"), v = arguments.rows("v");
  const Tensor d_o = arguments.rows("d_o");
  want_like(d_o, q, v, "d_o has another size");
  Arguments later = arguments;
  for (int i = 0; i < 3; ++i) (void)later.packed(Type::kFloat, {q.size(1), -1}, "sums of queries");
  const bool shares_keys = q.size(1) > k.size(1);
  const auto sums_of_keys = [&](Arguments& of, int64_t rows, const char* name) {
    return shares_keys
               ? of.packed(Type::kFloat, {k.size(1), rows < 0 ? -1 : rows * k.size(2)}, name)
               : of.packed(Type::kBfloat16, {k.size(0), k.size(1), k.size(2)}, name);
  };
  (void)sums_of_keys(later, -1, "dk"), (void)sums_of_keys(later, -1, "dv");
  const double scale = later.number();
  const Tensor starts_q = later.packed(Type::kInt, {-1}, "cu_seqlens_q");
  const Tensor starts_k = later.packed(Type::kInt, {starts_q.size(0)}, "cu_seqlens_k");
  later.none(2);
  const Window window = window_of(later);
  const Sequences all(starts_q, starts_k);
  int64_t most = 0;
  for (int64_t b = 0; b < all.count(); ++b)
    most = std::max({most, all.queries(b), all.queries(b) > 0 ? all.keys(b) : 0});
  want_near(window, most);
  want_orders(later, all, q.size(1), k.size(1));
  later.list_of_none(2);
  later.none(2);
  later.end();
  const int64_t rows = padded(q.size(0), kQueryTile, all.count());
  const int64_t keys = padded(k.size(0), kKeyTile, all.count());
  const Tensor scaled = arguments.packed(Type::kFloat, {q.size(1), rows}, "scaled lse");
  const Tensor delta = arguments.packed(Type::kFloat, {q.size(1), rows}, "delta");
  const Tensor dq = arguments.packed(Type::kFloat, {q.size(1), rows * q.size(2)}, "sums of dq");
  const Tensor dk = sums_of_keys(arguments, keys, "dk"), dv = sums_of_keys(arguments, keys, "dv");
  dq.want_zeros("dq");
  if (shares_keys) dk.want_zeros("dk"), dv.want_zeros("dv");
  const Backward whole{q, k, v, d_o, scaled, delta, dq, dk, dv, scale, window};
  for (int64_t b = 0; computes() && b < all.count(); ++b) whole.sequence(all, b);
}

/// Sums of queries where `tile` is theirs, else of keys.
void behind_backward(Arguments arguments) {
  Arguments later = arguments;
  const Tensor any = later.packed(Type::kFloat, {-1, -1}, "sums");
  const Tensor result = later.packed(Type::kBfloat16, {-1, any.size(0), -1}, "a gradient");
  const double scale = later.number();
  const Tensor starts = later.packed(Type::kInt, {-1}, "starts");
  later.none(3);
  later.end();
  const int64_t sequences = starts.size(0) - 1, dims = result.size(2);
  const int64_t rows = any.size(1) / dims;
  const bool is_of_keys = rows == padded(result.size(0), kKeyTile, sequences);
  const int64_t tile = is_of_keys ? kKeyTile : kQueryTile;
  const Tensor sums = arguments.packed(
      Type::kFloat, {any.size(0), padded(result.size(0), tile, sequences) * dims}, "sums");
  for (int64_t b = 0; b < sequences; ++b) {
    const auto begin = static_cast<int64_t>(starts.at(b)),
               end = static_cast<int64_t>(starts.at(b + 1));
    const int64_t first = padded_begin(begin, tile, b);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t head = 0; head < result.size(1); ++head) {
        for (int64_t d = 0; d < dims; ++d)
          result.put(scale * sums.at(head, (first + i - begin) * dims + d), i, head, d);
      }
    }
  }
}

}  // namespace distca::standin

using namespace distca::standin;

extern "C" {

void distca_kernel_stream(void* given) { stream = given; }
const char* distca_kernel_error() { return error.c_str(); }

int __tvm_ffi_func(void*, const Value* values, int32_t count, Value*) {
  try {
    want(stream == nullptr, "the host has no stream");
    const Arguments arguments(values, count);
    if (count == 18) {
      forward(arguments);
    } else if (count == 22) {
      backward(arguments);
    } else if (count == 7) {
      behind_backward(arguments);
    } else {
      throw std::runtime_error("Expects 7, 18 or 22 parameters");
    }
    return 0;
  } catch (const std::exception& fault) {
    error = fault.what();
    return -1;
  }
}
}
