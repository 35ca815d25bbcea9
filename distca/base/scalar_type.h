#pragma once
// Number formats of tensors, without a framework. Any thread.

#include <cstdint>

namespace distca {

enum class ScalarType : uint8_t { kFloat64, kFloat32, kBFloat16 };

/// Bytes of one element.
constexpr int64_t element_bytes(ScalarType type) {
  return type == ScalarType::kFloat64 ? 8 : type == ScalarType::kFloat32 ? 4 : 2;
}

}  // namespace distca
