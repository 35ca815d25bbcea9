#include "distca/base/error.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(Error, bad_input_exits_with_2_and_a_failing_world_with_1) {
  for (ErrorKind kind : {ErrorKind::kUsage, ErrorKind::kConfig, ErrorKind::kData, ErrorKind::kPlan,
                         ErrorKind::kCheckpoint}) {
    EXPECT_EQ(Error(kind, "x").exit_code(), 2);
  }
  EXPECT_EQ(Error(ErrorKind::kIo, "x").exit_code(), 1);
  EXPECT_EQ(Error(ErrorKind::kComm, "x").exit_code(), 1);
}

TEST(Check, failure_names_file_expression_and_values) {
  try {
    DISTCA_CHECK_EQ(1 + 1, 3);
    FAIL() << "2 equals 3";
  } catch (const CheckFailure& failure) {
    const std::string what = failure.what();
    EXPECT_NE(what.find("error_test.cc:"), std::string::npos) << what;
    EXPECT_NE(what.find("1 + 1 == 3: 2 against 3"), std::string::npos) << what;
  }
}

TEST(Check, a_true_condition_passes) {
  EXPECT_NO_THROW(DISTCA_CHECK(true, "never seen"));
  EXPECT_THROW(DISTCA_CHECK(false, "seen {}", 1), CheckFailure);
}

}  // namespace
}  // namespace distca
