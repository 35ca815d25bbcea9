#include "distca/base/scalar_type.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(ScalarType, has_a_long_and_a_short_name) {
  for (const auto& [type, long_name, short_name] :
       {std::tuple(ScalarType::kFloat64, "float64", "fp64"),
        std::tuple(ScalarType::kFloat32, "float32", "fp32"),
        std::tuple(ScalarType::kBFloat16, "bfloat16", "bf16")}) {
    EXPECT_EQ(scalar_type(long_name), type);
    EXPECT_EQ(scalar_type(short_name), type);
  }
  EXPECT_EQ(scalar_type("float16"), std::nullopt);
  EXPECT_EQ(scalar_type(""), std::nullopt);
}

}  // namespace
}  // namespace distca
