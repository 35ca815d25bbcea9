#include "distca/base/error.h"

#include <gtest/gtest.h>

#include <new>
#include <system_error>

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

TEST(FirstLine, is_one_line_without_the_place_in_the_source) {
  EXPECT_EQ(first_line(std::runtime_error("[/a/b/pair.cc:144] Connection closed by peer\nstack")),
            "Connection closed by peer");
  EXPECT_EQ(first_line(std::runtime_error("failed with [/a/pair.cc:152] timed out, [::1]:7$0")),
            "failed with timed out, [::1]:7$0");
  EXPECT_EQ(first_line(std::runtime_error("The client socket has timed out.")),
            "The client socket has timed out");
}

LastWords words_of(const auto& error) { return last_words(std::make_exception_ptr(error)); }

TEST(LastWords, tell_bad_input_the_world_and_bugs_apart) {
  const LastWords bad = words_of(Error(ErrorKind::kData, "two\nlines"));
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_EQ(bad.line, "distca: error: two lines");
  const LastWords memory = words_of(std::bad_alloc());
  EXPECT_EQ(memory.exit_code, 1);
  EXPECT_EQ(memory.line, "distca: error: out of memory");
  const LastWords torch = words_of(
      std::runtime_error("[enforce fail at alloc.cpp:1] . DefaultCPUAllocator: can't allocate "
                         "memory: you tried to allocate 8 bytes. Error code 12\nstack"));
  EXPECT_EQ(torch.exit_code, 1);
  EXPECT_EQ(torch.line, "distca: error: out of memory: you tried to allocate 8 bytes");
  const LastWords threads =
      words_of(std::system_error(std::make_error_code(std::errc::too_many_files_open)));
  EXPECT_EQ(threads.exit_code, 1);
  const LastWords bug = words_of(CheckFailure("a.cc:1: no"));
  EXPECT_EQ(bug.exit_code, 70);
  EXPECT_EQ(bug.line, "distca: bug: a.cc:1: no");
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
