#include "distca/base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "distca/base/error.h"

namespace distca {
namespace {

constexpr const char* kName = "DISTCA_ENV_TEST";

TEST(Env, unset_and_empty_are_absent) {
  unsetenv(kName);
  EXPECT_FALSE(env_string(kName).has_value());
  setenv(kName, "", 1);
  EXPECT_FALSE(env_string(kName).has_value());
  EXPECT_FALSE(env_integer(kName).has_value());
}

TEST(Env, integers_are_read_whole) {
  setenv(kName, "-42", 1);
  EXPECT_EQ(env_integer(kName), -42);
  for (const char* wrong : {"4x", "x", "1.5", "99999999999999999999"}) {
    setenv(kName, wrong, 1);
    EXPECT_THROW(env_integer(kName), Error) << wrong;
  }
}

}  // namespace
}  // namespace distca
