#include "distca/kernels/cpu/peak.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

namespace distca::kernels {
namespace {

/// The best of several: other programs and tests may hold the processor during any of them.
double peak(Isa isa, ScalarType type) {
  double best = 0;
  for (int i = 0; i < 5; ++i) best = std::max(best, measured_peak_gflops(isa, type, 0.02));
  return best;
}

struct Width {
  Isa isa;
  double lanes;  // of a vector
};
constexpr std::array<Width, 4> kWidths{
    {{Isa::kPortable, 4}, {Isa::kAvx2, 8}, {Isa::kAvx512, 16}, {Isa::kAvx512Bf16, 16}}};

// Bounds that hold on any machine unless the compiler leaves some of the work out: vectors are at
// most as many times faster as they are wider, twice that with fused multiply-adds against two
// instructions, and twice again with dot products of pairs. A quarter more for a changing clock.
TEST(Peak, a_wider_instruction_set_is_faster_by_no_more_than_its_width) {
  const double portable = peak(Isa::kPortable, ScalarType::kFloat32);
  EXPECT_GT(portable, 0);
  for (const Width& width : kWidths) {
    if (!isa_available(width.isa)) continue;
    SCOPED_TRACE(std::string(isa_name(width.isa)));
    const double most = 1.25 * portable * 2 * width.lanes / 4;
    const double fp32 = peak(width.isa, ScalarType::kFloat32);
    EXPECT_GT(fp32, 0.75 * portable);
    EXPECT_LT(fp32, most);
    const double bf16 = peak(width.isa, ScalarType::kBFloat16);
    EXPECT_GT(bf16, 0.75 * portable);
    EXPECT_LT(bf16, width.isa == Isa::kAvx512Bf16 ? 2 * most : most);
  }
}

TEST(Peak, double_precision_counts_half) {
  const double fp32 = peak(Isa::kPortable, ScalarType::kFloat32);
  const double fp64 = peak(Isa::kPortable, ScalarType::kFloat64);
  EXPECT_NEAR(fp64 / fp32, 0.5, 0.1);
}

}  // namespace
}  // namespace distca::kernels
