#pragma once
// For tests of the CPU attention kernel: every instruction set of this machine x input type, and
// the kernel's error bounds.

#include <optional>
#include <string>
#include <vector>

#include "distca/kernels/attention_testing.h"
#include "distca/kernels/cpu/attention.h"

namespace distca::kernels::testing {

/// Long documents are shorter where the compiler does not optimise or a sanitizer watches.
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool kFast = true;
#else
constexpr bool kFast = false;
#endif

struct Variant {
  Isa isa = Isa::kPortable;
  ScalarType type = ScalarType::kFloat32;  // type of the inputs

  /// Operands of products are pairs of bf16: probabilities and gradients of scores are rounded.
  bool rounds_operands() const { return isa == Isa::kAvx512Bf16 && type == ScalarType::kBFloat16; }
};

inline std::ostream& operator<<(std::ostream& out, const Variant& v) {
  return out << isa_name(v.isa) << (v.type == ScalarType::kFloat32 ? "_fp32" : "_bf16");
}

/// Returns the variants that this machine can run.
inline std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (!isa_available(isa)) continue;
    for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
      all.push_back({isa, type});
    }
  }
  return all;
}

class CpuAttentionSuite : public ::testing::TestWithParam<Variant> {
 protected:
  ScalarType type() const { return GetParam().type; }

  void forward(const Shape& shape, const TaskList& list, int threads = 2,
               std::optional<ScalarType> o_type = std::nullopt) const {
    ThreadPool pool(threads);
    cpu_forward(shape, type(), o_type.value_or(type()), list, pool, GetParam().isa);
  }
  void backward(const Shape& shape, const TaskList& list, int threads = 2) const {
    ThreadPool pool(threads);
    cpu_backward(shape, type(), list, pool, GetParam().isa);
  }

  /// Scores, exponentials and sums are fp32, and so is every result but O. Dot products of bf16
  /// pairs round probabilities and gradients of scores, once each; their exp2 is a polynomial good
  /// to 2^-13, in a term and in the sum that divides it.
  Bounds bounds(const Case& c, const WholeMatrix& whole,
                std::optional<ScalarType> o_type = std::nullopt) const {
    const bool rounds = GetParam().rounds_operands();
    Bounds bounds(c, whole,
                  {.sums = ScalarType::kFloat32,
                   .store = rounds ? ScalarType::kBFloat16 : ScalarType::kFloat32,
                   .store_roundings = 0,
                   .gradient_roundings = 1,
                   .exponential = rounds ? 2 * 0x1p-13 : 0});
    if (o_type.value_or(type()) == ScalarType::kBFloat16) {
      bounds.forward += unit_roundoff(ScalarType::kBFloat16);
    }
    return bounds;
  }
};

/// Positions that cut [begin, end) at random into at most `parts` ranges, at multiples of `unit`.
inline std::vector<Range> random_cuts(std::mt19937_64& random, const Range& range, int64_t parts,
                                      int64_t unit) {
  std::vector<int64_t> cuts{range.begin, range.end};
  for (int64_t i = 1; i < parts; ++i) {
    const int64_t cut =
        range.begin + static_cast<int64_t>(random() % (range.size() / unit + 1)) * unit;
    cuts.push_back(std::min(cut, range.end));
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<Range> ranges;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) ranges.push_back({cuts[i], cuts[i + 1]});
  return ranges;
}

}  // namespace distca::kernels::testing
