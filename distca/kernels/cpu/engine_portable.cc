#include "distca/kernels/cpu/engine_functions.h"
#include "distca/kernels/cpu/simd_portable.h"

namespace distca::kernels {

constinit const Engine kPortableEngine = EngineFunctions<PortableFp32, PortableFp32>::kEngine;

}  // namespace distca::kernels
