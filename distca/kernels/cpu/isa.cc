#include "distca/kernels/cpu/isa.h"

#include <array>
#include <string>

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
  std::string names;
  for (const Named& entry : kIsas) {
    if (!isa_available(entry.isa)) continue;
    names += names.empty() ? "" : ", ";
    names += entry.name;
  }
  return names;
}

#ifdef DISTCA_KERNELS_X86
// The builtin asks cpuid, and the operating system whether it saves the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512_bf16() { return false; }
#endif

}  // namespace

std::string_view isa_name(Isa isa) {
  for (const Named& entry : kIsas) {
    if (entry.isa == isa) return entry.name;
  }
  DISTCA_CHECK(false, "no instruction set has the number {}", static_cast<int>(isa));
  return {};
}

std::optional<Isa> isa_by_name(std::string_view name) {
  for (const Named& entry : kIsas) {
    if (entry.name == name) return entry.isa;
  }
  return std::nullopt;
}

bool isa_available(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return has_avx2();
    case Isa::kAvx512:
      return has_avx512();
    case Isa::kAvx512Bf16:
      return has_avx512_bf16();
  }
  return false;
}

Isa chosen_isa() {
  Isa best = Isa::kPortable;
  for (const Named& entry : kIsas) {
    if (isa_available(entry.isa)) best = entry.isa;
  }
  const std::optional<std::string> forced = env_string(kForcedIsa);
  if (!forced) return best;
  const std::optional<Isa> isa = isa_by_name(*forced);
  if (!isa) {
    throw Error(ErrorKind::kUsage,
                "environment variable {}=\"{}\": unknown instruction set; this machine has {}",
                kForcedIsa, *forced, available_names());
  }
  if (!isa_available(*isa)) {
    throw Error(ErrorKind::kUsage,
                "environment variable {}=\"{}\": not on this machine; this machine has {}",
                kForcedIsa, *forced, available_names());
  }
  return *isa;
}

}  // namespace distca::kernels
