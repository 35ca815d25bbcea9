#include "distca/kernels/cpu/isa.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "distca/base/env.h"
#include "distca/base/error.h"

namespace distca::kernels {
namespace {

constexpr const char* kForcedIsa = "DISTCA_KERNEL_ISA";

// [Isa] Ascending by speed.
constexpr std::array<std::string_view, 4> kNames{"portable", "avx2", "avx512", "avx512_bf16"};

std::vector<std::string_view> available_names() {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (isa_available(static_cast<Isa>(i))) names.push_back(kNames[i]);
  }
  return names;
}

}  // namespace

std::string_view isa_name(Isa isa) { return kNames.at(static_cast<size_t>(isa)); }

std::optional<Isa> isa_by_name(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Isa>(found - kNames.begin());
}

bool isa_available(Isa isa) {
  if (isa == Isa::kPortable) return true;
#ifdef DISTCA_KERNELS_X86
  // The builtin asks cpuid, and the operating system whether it saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == Isa::kAvx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return isa == Isa::kAvx512 ? avx512 : avx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

Isa chosen_isa() {
  const std::optional<std::string> forced = env_string(kForcedIsa);
  if (!forced) return *isa_by_name(available_names().back());
  const std::optional<Isa> isa = isa_by_name(*forced);
  if (isa && isa_available(*isa)) return *isa;
  throw Error(ErrorKind::kUsage, "environment variable {}=\"{}\": {}; this machine has {}",
              kForcedIsa, *forced, isa ? "not on this machine" : "unknown instruction set",
              fmt::join(available_names(), ", "));
}

}  // namespace distca::kernels
