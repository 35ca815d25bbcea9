#include "distca/base/error.h"
#include "distca/kernels/cpu/engine.h"

namespace distca::kernels {

const Engine& engine_of(Isa isa) {
  DISTCA_CHECK(isa_available(isa), "this machine lacks {}", isa_name(isa));
#ifdef DISTCA_KERNELS_X86
  switch (isa) {
    case Isa::kAvx512Bf16:
      return kAvx512Bf16Engine;
    case Isa::kAvx512:
      return kAvx512Engine;
    case Isa::kAvx2:
      return kAvx2Engine;
    case Isa::kPortable:
      break;
  }
#endif
  return kPortableEngine;
}

}  // namespace distca::kernels
