#pragma once
// Our scalar types and devices in ATen's words. Any thread.

#include <cstdint>

#include "distca/base/scalar_type.h"

namespace c10 {
enum class ScalarType : int8_t;
struct Device;
}  // namespace c10

namespace distca {

c10::ScalarType aten_type(ScalarType type);
/// Below 0: the CPU.
c10::Device aten_device(int cuda_device);

}  // namespace distca
