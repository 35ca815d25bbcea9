#include "distca/kernels/cpu/engine_functions.h"
#include "distca/kernels/cpu/simd_avx512.h"

namespace distca::kernels {

constinit const Engine kAvx512Bf16Engine = EngineFunctions<Avx512Fp32, Avx512Bf16>::kEngine;

}  // namespace distca::kernels
