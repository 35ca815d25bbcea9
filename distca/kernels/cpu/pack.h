#pragma once
// Copies the operands of a product (product.h) into the order in which the product reads them. Rows
// are given by their addresses, so only this file needs to know of heads, token strides and
// fragments.
//
// `Simd` says which words are written: fp32 numbers, or pairs of bf16 numbers (Simd::kPairs).
// `Number` is what the rows hold, float or BFloat16; bf16 is widened if words are fp32. The words
// of a row are its numbers, or its pairs of neighbouring numbers. Thread rule: no shared state.

#include <cstddef>
#include <cstdint>

#include "distca/kernels/attention.h"
#include "distca/kernels/bfloat16.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

constexpr int64_t kFarPosition = int64_t{1} << 61;  // beyond every position; sums do not overflow

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Stands for a row that does not exist.
alignas(64) const Word kZeroRow[kMostHeadDim] = {};

/// Addresses of rows. Each is kZeroRow or the address of `dim` numbers.
using RowAddresses = const void* const*;

/// The address of the row of a token and a head.
inline std::byte* row_address(const Rows& rows, int number_bytes, int64_t token, int64_t head) {
  return static_cast<std::byte*>(rows.data) +
         (token * rows.token_stride + head * rows.head_stride) * number_bytes;
}

/// Writes the addresses of `count` flattened rows (engine.h) from `row` on, and of kZeroRow from
/// there to `padded`.
inline void query_row_addresses(const Rows& rows, int number_bytes, int64_t group, int64_t kv_head,
                                int64_t row, int count, int padded, const void** to) {
  int64_t head = row % group;
  const std::byte* from = row_address(rows, number_bytes, row / group, kv_head * group + head);
  for (int i = 0; i < count; ++i) {
    to[i] = from;
    from += rows.head_stride * number_bytes;
    if (++head == group) {
      head = 0;
      from += (rows.token_stride - group * rows.head_stride) * number_bytes;
    }
  }
  for (int i = count; i < padded; ++i) to[i] = kZeroRow;
}

/// Keys of a key tile that lie in one fragment: keys [first, first + count) of the key tile are the
/// tokens of the fragment from `token` on.
struct KeyPiece {
  int64_t fragment = 0;
  int64_t token = 0;
  int first = 0;
  int count = 0;
};

/// The keys of a key tile that exist, and where they are.
struct KeyPieces {
  KeyPiece piece[kTileKeys];
  int pieces = 0;
  uint64_t present = 0;  // bit i: key i of the key tile exists
};
static_assert(kTileKeys == 64, "one bit a key");

/// The lowest n bits are set.
constexpr uint64_t first_bits(int n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

/// The first position, from `position` on, that has a key; kFarPosition if there is none. `hint` is
/// the fragment where the search starts.
inline int64_t next_key(const KeyFragment* fragments, int64_t count, int64_t hint,
                        int64_t position) {
  int64_t next = kFarPosition;
  for (int64_t i = 0, at = hint; i < count; ++i) {
    const KeyFragment& fragment = fragments[at];
    if (fragment.position + fragment.tokens > position) {
      if (fragment.position <= position) return position;
      if (fragment.position < next) next = fragment.position;
    }
    if (++at == count) at = 0;
  }
  return next;
}

/// Finds the keys of the key tile at `position`. `hint` is the fragment where the search starts; it
/// becomes the last one found.
inline void find_keys(const KeyFragment* fragments, int64_t count, int64_t position, int64_t* hint,
                      KeyPieces* found) {
  found->pieces = 0;
  found->present = 0;
  int64_t at = *hint;
  for (int64_t i = 0; i < count && found->present != ~uint64_t{0}; ++i) {
    const KeyFragment& fragment = fragments[at];
    const int64_t begin = fragment.position > position ? fragment.position : position;
    const int64_t fragment_end = fragment.position + fragment.tokens;
    const int64_t end = fragment_end < position + kTileKeys ? fragment_end : position + kTileKeys;
    if (begin < end) {
      const int first = static_cast<int>(begin - position);
      const int keys = static_cast<int>(end - begin);
      found->piece[found->pieces++] = {at, begin - fragment.position, first, keys};
      found->present |= first_bits(keys) << first;
      *hint = at;
    }
    if (++at == count) at = 0;
  }
}

/// Writes the addresses of a piece's rows, at the places of its keys in the key tile.
inline void key_row_addresses(const Rows& rows, int number_bytes, int64_t kv_head,
                              const KeyPiece& piece, const void** to) {
  const std::byte* row = row_address(rows, number_bytes, piece.token, kv_head);
  for (int i = 0; i < piece.count; ++i) {
    to[piece.first + i] = row;
    row += rows.token_stride * number_bytes;
  }
}

/// Writes the addresses of the K and V rows of all keys of a key tile.
inline void key_tile_addresses(const KeyFragment* fragments, const KeyPieces& keys,
                               int number_bytes, int64_t kv_head, const void** k, const void** v) {
  if (keys.present != ~uint64_t{0}) {
    for (int i = 0; i < kTileKeys; ++i) k[i] = v[i] = kZeroRow;
  }
  for (int i = 0; i < keys.pieces; ++i) {
    const KeyFragment& fragment = fragments[keys.piece[i].fragment];
    key_row_addresses(fragment.k, number_bytes, kv_head, keys.piece[i], k);
    key_row_addresses(fragment.v, number_bytes, kv_head, keys.piece[i], v);
  }
}

/// The number of words of a row of `dim` numbers.
template <class Simd>
constexpr int row_words(int dim) {
  return Simd::kPairs ? dim / 2 : dim;
}

/// Words [word, word + count) of a row, at most one vector. The remaining lanes are 0.
template <class Simd, class Number>
inline typename Simd::Vector load_row_words(const void* row, int word, int count) {
  if constexpr (sizeof(Number) == sizeof(Word) || Simd::kPairs) {
    return Simd::load_first(static_cast<const Word*>(row) + word, count);
  } else {
    return Simd::widen_first(static_cast<const uint16_t*>(row) + word, count);
  }
}

/// Writes kRows rows of `words` words, which come from load(row, word, count). With kCheck, adds
/// 0 * word of all words to `check`, one sum for each row.
template <class Simd, int kRows, bool kCheck, class Load>
inline __attribute__((always_inline)) void copy_rows(const Load& load, int words, Word* to,
                                                     int stride, typename Simd::Vector* check) {
  const Word zero = 0;
  const auto copy = [&](int w, int count) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const auto x = load(i, w, count);
      if constexpr (kCheck) check[i] = Simd::multiply_word(&zero, x, check[i]);
      Simd::store(to + i * stride + w, x);
    }
  };
  int w = 0;
  for (; w + Simd::kLanes <= words; w += Simd::kLanes) copy(w, Simd::kLanes);
  if (w < words) copy(w, words - w);
}

/// Writes `count` rows in groups of four, which come from load(row, word, count). With kCheck,
/// returns whether all numbers are finite (0 * x is 0 only for these), otherwise nothing.
template <class Simd, bool kCheck, class Load>
inline auto copy_all_rows(const Load& load, int count, int words, Word* to, int stride) {
  typename Simd::Vector check[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  int r = 0;
  for (; r + 4 <= count; r += 4) {
    copy_rows<Simd, 4, kCheck>(
        [&](int i, int w, int n) __attribute__((always_inline)) { return load(r + i, w, n); },
        words, to + int64_t{r} * stride, stride, check);
  }
  for (; r < count; ++r) {
    copy_rows<Simd, 1, kCheck>(
        [&](int, int w, int n) __attribute__((always_inline)) { return load(r, w, n); }, words,
        to + int64_t{r} * stride, stride, check);
  }
  if constexpr (kCheck) {
    float lanes[Simd::kLanes];
    Simd::store(lanes, (check[0] + check[1]) + (check[2] + check[3]));
    float sum = 0;
    for (const float lane : lanes) sum += lane;
    return sum == 0;
  }
}

/// Copies rows as they lie, to [count][stride]. `stride` has room for whole vectors. With kCheck,
/// returns whether all numbers are finite, otherwise nothing.
template <class Simd, class Number, bool kCheck = false>
inline auto pack_rows(RowAddresses rows, int count, int dim, Word* to, int stride) {
  return copy_all_rows<Simd, kCheck>(
      [&](int r, int w, int n)
          __attribute__((always_inline)) { return load_row_words<Simd, Number>(rows[r], w, n); },
      count, row_words<Simd>(dim), to, stride);
}

/// Copies rows that are summed over, to [count][stride] in fp32. With bf16 pairs, it copies to
/// [count / 2][stride]; word i of row p holds number i of row 2 p (low half) and of the row after
/// it, and `count` is even. In everything else, it is like pack_rows.
template <class Simd, class Number, bool kCheck = false>
inline auto pack_summed_rows(RowAddresses rows, int count, int dim, Word* to, int stride) {
  if constexpr (!Simd::kPairs) {
    return pack_rows<Simd, Number, kCheck>(rows, count, dim, to, stride);
  } else {
    const auto load = [&](int r, int w, int n) __attribute__((always_inline)) {
      const auto* const first = static_cast<const uint16_t*>(rows[2 * r]);
      return Simd::pair_first(first + w, static_cast<const uint16_t*>(rows[2 * r + 1]) + w, n);
    };
    return copy_all_rows<Simd, kCheck>(load, count / 2, dim, to, stride);
  }
}

/// Copies rows to lanes: [words of a row][width]. `count` is a multiple of Simd::kLanes.
template <class Simd, class Number>
inline void pack_transposed(RowAddresses rows, int count, int dim, Word* to, int width) {
  constexpr int kLanes = Simd::kLanes;
  const int words = row_words<Simd>(dim);
  for (int r = 0; r < count; r += kLanes) {
    for (int w = 0; w < words; w += kLanes) {
      const int left = words - w < kLanes ? words - w : kLanes;
      typename Simd::Vector square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        square[i] = load_row_words<Simd, Number>(rows[r + i], w, left);
      }
      Simd::transpose(square);
      Word* row = to + w * width + r;
      if (left == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) Simd::store(row + i * width, square[i]);
      } else {
        float words_out[kLanes * kLanes];
        for (int i = 0; i < kLanes; ++i) Simd::store(words_out + i * kLanes, square[i]);
        for (int i = 0; i < left; ++i) {
          Simd::store(row + i * width, Simd::load(words_out + i * kLanes));
        }
      }
    }
  }
}

}  // namespace
}  // namespace distca::kernels
