#pragma once
// Number formats of tensors, without a framework. Any thread.

#include <cstdint>
#include <optional>
#include <string_view>

namespace distca {

enum class ScalarType : uint8_t { kFloat64, kFloat32, kBFloat16 };

/// Bytes of one element.
constexpr int64_t element_bytes(ScalarType type) {
  return type == ScalarType::kFloat64 ? 8 : type == ScalarType::kFloat32 ? 4 : 2;
}

/// By its long name ("float32", of configurations) or its short one ("fp32", of command lines).
constexpr std::optional<ScalarType> scalar_type(std::string_view name) {
  if (name == "float64" || name == "fp64") return ScalarType::kFloat64;
  if (name == "float32" || name == "fp32") return ScalarType::kFloat32;
  if (name == "bfloat16" || name == "bf16") return ScalarType::kBFloat16;
  return std::nullopt;
}

/// "fp64", "fp32", "bf16".
constexpr std::string_view short_name(ScalarType type) {
  return type == ScalarType::kFloat64 ? "fp64" : type == ScalarType::kFloat32 ? "fp32" : "bf16";
}

/// "float64", "float32", "bfloat16".
constexpr std::string_view long_name(ScalarType type) {
  return type == ScalarType::kFloat64   ? "float64"
         : type == ScalarType::kFloat32 ? "float32"
                                        : "bfloat16";
}

}  // namespace distca
