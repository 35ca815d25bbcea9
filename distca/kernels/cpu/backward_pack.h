#pragma once
// Rows of a backward tile as operands of the products: how Q and dO are packed, and how dQ goes
// back. Units of one instruction set only.
//
// A panel is kPanelRows rows. Packed twice: by lanes [words][32], the right operand of the scores;
// and by rows [column panels][64 rows][32], the right operand of dK and dV, where words of bf16
// hold the same column of two neighbouring rows.

#include <cstdint>
#include <cstring>

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

constexpr int kPairRows = 2 * kPanelRows;  // rows that dK and dV take together
constexpr int kStageStride = kMostHeadDim + 16;

/// Where the flattened rows of one key head lie.
struct FlatRows {
  const std::byte* data;  // of the group's first head
  int64_t token_bytes;
  int64_t head_bytes;
  int64_t group;  // R
};

FlatRows flat_rows(const Rows& rows, int64_t group, int64_t kv_head, int64_t bytes) {
  return {static_cast<const std::byte*>(rows.data) + kv_head * group * rows.head_stride * bytes,
          rows.token_stride * bytes, rows.head_stride * bytes, group};
}

const std::byte* flat_row(const FlatRows& rows, int64_t row) {
  return rows.data + row / rows.group * rows.token_bytes + row % rows.group * rows.head_bytes;
}

/// One row as words: bf16 stays for products of pairs, else becomes fp32.
template <class Simd>
void copy_row(const std::byte* from, ScalarType type, int dim, Word* to) {
  if (Simd::kPairs || type == ScalarType::kFloat32) {
    std::memcpy(to, from, dim * (type == ScalarType::kFloat32 ? 4 : 2));
    return;
  }
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(from);
  for (int i = 0; i < dim; ++i) to[i] = static_cast<Word>(halves[i]) << 16;
}

/// [kLanes][kLanes] words.
template <class Simd>
void transpose(const Word* from, int from_stride, Word* to, int to_stride) {
  for (int i = 0; i < Simd::kLanes; ++i) {
    for (int j = 0; j < Simd::kLanes; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
}

/// to += scale * from.
template <class Simd>
void add_scaled(const float* from, int count, float scale, float* to) {
  int i = 0;
  for (; i + Simd::kLanes <= count; i += Simd::kLanes) {
    Simd::store(to + i,
                Simd::multiply_add(Simd::load(from + i), Simd::set(scale), Simd::load(to + i)));
  }
  for (; i < count; ++i) to[i] = __builtin_fmaf(from[i], scale, to[i]);
}

constexpr float kLog2E = 1.44269504F;

template <class Simd>
typename Simd::Vector exp2_of(typename Simd::Vector x) {
  const auto n = Simd::round(x);
  const auto f = Simd::subtract(x, n);
  // Minimax on [-0.5, 0.5], exactly 1 at 0.
  auto p = Simd::set(0.00133908f);
  p = Simd::multiply_add(p, f, Simd::set(0.00961844f));
  p = Simd::multiply_add(p, f, Simd::set(0.0555033f));
  p = Simd::multiply_add(p, f, Simd::set(0.24022651f));
  p = Simd::multiply_add(p, f, Simd::set(0.6931472f));
  p = Simd::multiply_add(p, f, Simd::set(1.0f));
  return Simd::scale_by_power(p, n);
}

}  // namespace
}  // namespace distca::kernels
