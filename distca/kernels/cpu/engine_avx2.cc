#include "distca/kernels/cpu/engine_functions.h"
#include "distca/kernels/cpu/simd_avx2.h"

namespace distca::kernels {

constinit const Engines kAvx2Engines = kEngines<Avx2Fp32, Avx2Fp32>;

}  // namespace distca::kernels
