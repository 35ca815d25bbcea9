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

/// The type whose numbers have so many bytes: bfloat16 for 2, float32 for 4, float64 for 8. Nothing
/// for any other size.
constexpr std::optional<ScalarType> type_of_bytes(int64_t bytes) {
  for (const ScalarType type :
       {ScalarType::kBFloat16, ScalarType::kFloat32, ScalarType::kFloat64}) {
    if (element_bytes(type) == bytes) return type;
  }
  return std::nullopt;
}

/// The one name of a number type by which it is shown: "bfloat16" for "bf16", "float16" for "fp16"
/// or "half", "float32" for "fp32" or "float", "float64" for "fp64" or "double". Any other text
/// stays as it is.
constexpr std::string_view type_name(std::string_view name) {
  if (name == "bf16") return "bfloat16";
  if (name == "fp16" || name == "half") return "float16";
  if (name == "fp32" || name == "float") return "float32";
  if (name == "fp64" || name == "double") return "float64";
  return name;
}

/// The type with this name, in any of its spellings. Nothing for any other text.
constexpr std::optional<ScalarType> scalar_type(std::string_view name) {
  const std::string_view known = type_name(name);
  if (known == "float64") return ScalarType::kFloat64;
  if (known == "float32") return ScalarType::kFloat32;
  if (known == "bfloat16") return ScalarType::kBFloat16;
  return std::nullopt;
}

/// Returns "fp64", "fp32" or "bf16", for the results of benchmarks.
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
