#pragma once
// Our scalar types in ATen's words. Any thread.

#include <cstdint>

#include "distca/base/scalar_type.h"

namespace c10 {
enum class ScalarType : int8_t;
}

namespace distca {

c10::ScalarType aten_type(ScalarType type);

}  // namespace distca
