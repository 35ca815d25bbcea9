#include "distca/kernels/cpu/engine_functions.h"
#include "distca/kernels/cpu/simd_avx512.h"

namespace distca::kernels {

constinit const Engines kAvx512Bf16Engines = kEngines<Avx512Fp32, Avx512Bf16>;

}  // namespace distca::kernels
