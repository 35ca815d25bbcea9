#include "distca/kernels/cpu/peak.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>

namespace distca::kernels {
namespace {

struct Width {
  Isa isa;
  double lanes;  // lanes of a vector
};
constexpr std::array<Width, 4> kWidths{
    {{Isa::kPortable, 4}, {Isa::kAvx2, 8}, {Isa::kAvx512, 16}, {Isa::kAvx512Bf16, 16}}};

struct Peaks {
  double fp32 = 0, bf16 = 0;
};

// Bounds that hold on any machine unless the compiler leaves some of the work out: vectors are at
// most as many times faster as they are wider, twice that with fused multiply-adds against two
// instructions, and twice again with dot products of pairs. A quarter more for a changing clock.
std::string faults(double portable, const std::map<Isa, Peaks>& peaks) {
  std::string found;
  for (const Width& width : kWidths) {
    if (!peaks.contains(width.isa)) continue;
    const auto [fp32, bf16] = peaks.at(width.isa);
    const double most = 1.25 * portable * 2 * width.lanes / 4;
    for (const auto& [name, reached, at_most] :
         {std::tuple("fp32", fp32, most),
          std::tuple("bf16", bf16, width.isa == Isa::kAvx512Bf16 ? 2 * most : most)}) {
      if (reached <= 0.75 * portable || reached >= at_most)
        found += fmt::format("{} {}: {} GFLOP/s, portable fp32 {}\n", isa_name(width.isa), name,
                             reached, portable);
    }
  }
  return found;
}

// The highest rate of several looks in turns counts: other work on the machine lowers some of them.
TEST(Peak, a_wider_instruction_set_is_faster_by_no_more_than_its_width) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers slow the loops of instruction sets unequally";
#endif
  double portable = 0;
  std::map<Isa, Peaks> peaks;
  const auto look = [](double* best, Isa isa, ScalarType type) {
    *best = std::max(*best, measured_peak_gflops(isa, type, 0.1));
  };
  std::string found;
  for (int round = 0; round < 20 && (round < 2 || !found.empty()); ++round) {
    look(&portable, Isa::kPortable, ScalarType::kFloat32);
    for (const Width& width : kWidths) {
      if (!isa_available(width.isa)) continue;
      look(&peaks[width.isa].fp32, width.isa, ScalarType::kFloat32);
      look(&peaks[width.isa].bf16, width.isa, ScalarType::kBFloat16);
    }
    found = faults(portable, peaks);
  }
  EXPECT_GT(portable, 0);
  EXPECT_EQ(found, "");
}

}  // namespace
}  // namespace distca::kernels
