#include "distca/kernels/cpu/engine_functions.h"
#include "distca/kernels/cpu/simd_avx2.h"

namespace distca::kernels {

constinit const Engine kAvx2Engine = EngineFunctions<Avx2Fp32, Avx2Fp32>::kEngine;

}  // namespace distca::kernels
