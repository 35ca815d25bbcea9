#include "distca/kernels/cpu/engine_functions.h"
#include "distca/kernels/cpu/simd_avx512.h"

namespace distca::kernels {

constinit const Engine kAvx512Engine = EngineFunctions<Avx512Fp32, Avx512Fp32>::kEngine;

}  // namespace distca::kernels
