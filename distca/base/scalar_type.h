#pragma once
// The number formats of tensors, for code that uses no framework. Any thread may call these
// functions.

#include <cstdint>
#include <optional>
#include <string_view>

namespace distca {

enum class ScalarType : uint8_t { kFloat64, kFloat32, kBFloat16 };

/// The size of one number in bytes.
constexpr int64_t element_bytes(ScalarType type) {
  return type == ScalarType::kFloat64 ? 8 : type == ScalarType::kFloat32 ? 4 : 2;
}

/// The type with this name: a long one as in configurations ("float32"), or a short one as on
/// command lines ("fp32"). Nothing for any other text.
constexpr std::optional<ScalarType> scalar_type(std::string_view name) {
  if (name == "float64" || name == "fp64") return ScalarType::kFloat64;
  if (name == "float32" || name == "fp32") return ScalarType::kFloat32;
  if (name == "bfloat16" || name == "bf16") return ScalarType::kBFloat16;
  return std::nullopt;
}

/// Returns "fp64", "fp32" or "bf16".
constexpr std::string_view short_name(ScalarType type) {
  return type == ScalarType::kFloat64 ? "fp64" : type == ScalarType::kFloat32 ? "fp32" : "bf16";
}

/// Returns "float64", "float32" or "bfloat16".
constexpr std::string_view long_name(ScalarType type) {
  return type == ScalarType::kFloat64   ? "float64"
         : type == ScalarType::kFloat32 ? "float32"
                                        : "bfloat16";
}

}  // namespace distca
