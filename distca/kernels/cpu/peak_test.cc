#include "distca/kernels/cpu/peak.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace distca::kernels {
namespace {

constexpr double kSeconds = 0.2;  // the fastest burst counts: time for one that nobody disturbs

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
  const double portable = measured_peak_gflops(Isa::kPortable, ScalarType::kFloat32, kSeconds);
  EXPECT_GT(portable, 0);
  for (const Width& width : kWidths) {
    if (!isa_available(width.isa)) continue;
    SCOPED_TRACE(std::string(isa_name(width.isa)));
    const double most = 1.25 * portable * 2 * width.lanes / 4;
    const double fp32 = measured_peak_gflops(width.isa, ScalarType::kFloat32, kSeconds);
    EXPECT_GT(fp32, 0.75 * portable);
    EXPECT_LT(fp32, most);
    const double bf16 = measured_peak_gflops(width.isa, ScalarType::kBFloat16, kSeconds);
    EXPECT_GT(bf16, 0.75 * portable);
    EXPECT_LT(bf16, width.isa == Isa::kAvx512Bf16 ? 2 * most : most);
  }
}

}  // namespace
}  // namespace distca::kernels
