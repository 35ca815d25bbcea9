#include "distca/base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace distca {
namespace {

constexpr const char* kName = "DISTCA_ENV_TEST";

TEST(Env, unset_and_empty_are_absent) {
  unsetenv(kName);
  EXPECT_FALSE(env_string(kName).has_value());
  setenv(kName, "", 1);
  EXPECT_FALSE(env_string(kName).has_value());
}

TEST(Env, what_is_set_is_read) {
  setenv(kName, "-42", 1);
  EXPECT_EQ(env_string(kName), "-42");
}

}  // namespace
}  // namespace distca
