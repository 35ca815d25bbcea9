#include "distca/base/scalar_type.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(ScalarType, has_a_long_and_a_short_name) {
  for (const auto& [type, name_of_type, short_name_of_type] :
       {std::tuple(ScalarType::kFloat64, "float64", "fp64"),
        std::tuple(ScalarType::kFloat32, "float32", "fp32"),
        std::tuple(ScalarType::kBFloat16, "bfloat16", "bf16")}) {
    EXPECT_EQ(scalar_type(name_of_type), type);
    EXPECT_EQ(scalar_type(short_name_of_type), type);
    EXPECT_EQ(short_name(type), short_name_of_type);
  }
  EXPECT_EQ(type_name("bf16"), "bfloat16");
  EXPECT_EQ(type_name("half"), "float16");
  EXPECT_EQ(type_name("float"), "float32");
  EXPECT_EQ(type_name("int8"), "int8");
  EXPECT_EQ(scalar_type("float16"), std::nullopt);
  EXPECT_EQ(scalar_type(""), std::nullopt);
}

TEST(ScalarType, is_known_by_the_bytes_of_a_number) {
  for (const ScalarType type :
       {ScalarType::kFloat64, ScalarType::kFloat32, ScalarType::kBFloat16}) {
    EXPECT_EQ(type_of_bytes(element_bytes(type)), type);
  }
  for (const int64_t bytes : {-2, 0, 1, 3, 16}) EXPECT_EQ(type_of_bytes(bytes), std::nullopt);
}

}  // namespace
}  // namespace distca
