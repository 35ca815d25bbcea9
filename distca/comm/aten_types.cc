#include "distca/comm/aten_types.h"

#include <ATen/core/Tensor.h>

#include "distca/base/error.h"

namespace distca {

c10::ScalarType aten_type(ScalarType type) {
  switch (type) {
    case ScalarType::kFloat64:
      return at::kDouble;
    case ScalarType::kFloat32:
      return at::kFloat;
    case ScalarType::kBFloat16:
      return at::kBFloat16;
  }
  DISTCA_CHECK(false, "unknown scalar type {}", static_cast<int>(type));
  return at::kFloat;
}

}  // namespace distca
