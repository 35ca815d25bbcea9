#include "distca/base/error.h"
#include "distca/kernels/cpu/engine.h"

namespace distca::kernels {
namespace {

const Engines& engines_of(Isa isa) {
#ifdef DISTCA_KERNELS_X86
  switch (isa) {
    case Isa::kAvx512Bf16:
      return kAvx512Bf16Engines;
    case Isa::kAvx512:
      return kAvx512Engines;
    case Isa::kAvx2:
      return kAvx2Engines;
    case Isa::kPortable:
      break;
  }
#endif
  return kPortableEngines;
}

}  // namespace

const Engine& engine_of(Isa isa, ScalarType type) {
  DISTCA_CHECK(isa_available(isa), "this machine lacks {}", isa_name(isa));
  const Engines& engines = engines_of(isa);
  return type == ScalarType::kBFloat16 ? engines.bf16 : engines.fp32;
}

}  // namespace distca::kernels
