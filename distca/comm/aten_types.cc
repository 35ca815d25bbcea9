#include "distca/comm/aten_types.h"

#include <ATen/core/Tensor.h>

namespace distca {

c10::ScalarType aten_type(ScalarType type) {
  return type == ScalarType::kFloat64   ? at::kDouble
         : type == ScalarType::kFloat32 ? at::kFloat
                                        : at::kBFloat16;
}

c10::Device aten_device(int cuda_device) {
  return cuda_device < 0 ? at::Device(at::kCPU)
                         : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
}

}  // namespace distca
