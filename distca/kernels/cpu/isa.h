#pragma once
// Which instruction set the CPU kernel uses. DISTCA_KERNEL_ISA forces one; it is read here only.
// Thread rule: reads only; nobody may write the environment at the same time.

#include <optional>
#include <string_view>

namespace distca::kernels {

enum class Isa {
  kPortable,    // what the compiler makes of 16-byte vectors: any machine, NEON on Arm
  kAvx2,        // AVX2 + FMA
  kAvx512,      // AVX-512 F, BW, DQ, VL; bf16 is widened to fp32
  kAvx512Bf16,  // AVX-512 and dot products of bf16 pairs
};

/// "portable", "avx2", "avx512", "avx512_bf16".
std::string_view isa_name(Isa isa);
std::optional<Isa> isa_by_name(std::string_view name);

/// Compiled in, and this machine has it.
bool isa_available(Isa isa);

/// DISTCA_KERNEL_ISA if set, else the best available one. Throws Error(kUsage) for a name that
/// is unknown or an instruction set that this machine lacks, naming those it has.
Isa chosen_isa();

}  // namespace distca::kernels
