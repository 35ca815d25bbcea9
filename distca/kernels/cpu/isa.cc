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

struct Named {
  Isa isa;
  std::string_view name;
};

// Ascending by speed.
constexpr std::array<Named, 4> kIsas{{{Isa::kPortable, "portable"},
                                      {Isa::kAvx2, "avx2"},
                                      {Isa::kAvx512, "avx512"},
                                      {Isa::kAvx512Bf16, "avx512_bf16"}}};

std::string available_names() {
  std::vector<std::string_view> names;
  for (const Named& entry : kIsas) {
    if (isa_available(entry.isa)) names.push_back(entry.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string_view isa_name(Isa isa) {
  const auto found = std::ranges::find(kIsas, isa, &Named::isa);
  DISTCA_CHECK(found != kIsas.end(), "no instruction set has the number {}", static_cast<int>(isa));
  return found->name;
}

std::optional<Isa> isa_by_name(std::string_view name) {
  const auto found = std::ranges::find(kIsas, name, &Named::name);
  return found == kIsas.end() ? std::nullopt : std::optional(found->isa);
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
  Isa best = Isa::kPortable;
  for (const Named& entry : kIsas) {
    if (isa_available(entry.isa)) best = entry.isa;
  }
  const std::optional<std::string> forced = env_string(kForcedIsa);
  if (!forced) return best;
  const std::optional<Isa> isa = isa_by_name(*forced);
  if (isa && isa_available(*isa)) return *isa;
  throw Error(ErrorKind::kUsage, "environment variable {}=\"{}\": {}; this machine has {}",
              kForcedIsa, *forced, isa ? "not on this machine" : "unknown instruction set",
              available_names());
}

}  // namespace distca::kernels
