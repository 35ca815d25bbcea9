#include "distca/base/log.h"

#include <gtest/gtest.h>

#include "distca/base/error.h"

namespace distca {
namespace {

TEST(Log, lines_are_plain_and_warnings_say_so) {
  ::testing::internal::CaptureStderr();
  log_debug("hidden");
  log_info("step {} of {{}}", 3);
  log_warn("slow");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "step 3 of {}\nwarning: slow\n");
}

TEST(Log, the_level_hides_what_lies_below) {
  set_log_level(log_level_from_name("warn"));
  ::testing::internal::CaptureStderr();
  log_info("hidden");
  log_warn("shown");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning: shown\n");
  set_log_level(LogLevel::kInfo);
}

TEST(Log, an_unknown_level_is_refused) { EXPECT_THROW(log_level_from_name("loud"), Error); }

}  // namespace
}  // namespace distca
