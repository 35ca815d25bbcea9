#include "distca/kernels/cpu/engine_functions.h"
#include "distca/kernels/cpu/simd_portable.h"

namespace distca::kernels {

constinit const Engines kPortableEngines = kEngines<PortableFp32, PortableFp32>;

}  // namespace distca::kernels
