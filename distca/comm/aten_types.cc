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

c10::Device aten_device(int cuda_device) {
  return cuda_device < 0 ? at::Device(at::kCPU)
                         : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
}

}  // namespace distca
