#pragma once
// Chooses the instruction set of the CPU kernel. DISTCA_KERNEL_ISA forces one, and is read only
// here. Thread rule: any thread may call these functions, but nobody may change the environment at
// the same time.

#include <optional>
#include <string_view>

namespace distca::kernels {

/// An instruction set that the kernel is compiled for.
enum class Isa {
  kPortable,    // the compiler's 16-byte vectors: any machine, NEON on Arm
  kAvx2,        // AVX2 and FMA
  kAvx512,      // AVX-512 F, BW, DQ and VL; bf16 is widened to fp32
  kAvx512Bf16,  // AVX-512 and dot products of pairs of bf16 numbers
};

/// Returns "portable", "avx2", "avx512" or "avx512_bf16".
std::string_view isa_name(Isa isa);
/// The instruction set with this name; nothing for another name.
std::optional<Isa> isa_by_name(std::string_view name);

/// Returns true if it is compiled in and this machine has it.
bool isa_available(Isa isa);

/// The instruction set of DISTCA_KERNEL_ISA or, if that is unset, the best available one. Throws
/// Error(kUsage) for an unknown name or an instruction set that this machine lacks; the message
/// names those that it has.
Isa chosen_isa();

}  // namespace distca::kernels
