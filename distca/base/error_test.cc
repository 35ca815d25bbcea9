#include "distca/base/error.h"

#include <gtest/gtest.h>

#include <new>
#include <system_error>

namespace distca {
namespace {

TEST(Error, bad_input_exits_with_2_a_failing_world_with_1_and_training_gone_wrong_with_3) {
  for (ErrorKind kind : {ErrorKind::kUsage, ErrorKind::kConfig, ErrorKind::kData, ErrorKind::kPlan,
                         ErrorKind::kCheckpoint}) {
    EXPECT_EQ(Error(kind, "x").exit_code(), 2);
  }
  EXPECT_EQ(Error(ErrorKind::kIo, "x").exit_code(), 1);
  EXPECT_EQ(Error(ErrorKind::kComm, "x").exit_code(), 1);
  EXPECT_EQ(Error(ErrorKind::kTraining, "x").exit_code(), 3);
}

TEST(Error, is_one_line_whatever_it_quotes) {
  EXPECT_STREQ(Error(ErrorKind::kConfig, "key {}: unknown", "a\n\x1b[31m\x7f\tb").what(),
               "key a  [31m  b: unknown");
  EXPECT_STREQ(Error(ErrorKind::kConfig, "{}", "Stra\u00dfe").what(), "Stra\u00dfe");
}

TEST(Error, of_a_long_quotation_keeps_the_beginning_and_the_end) {
  const auto message = [](const std::string& quoted) {
    return std::string(Error(ErrorKind::kConfig, "unknown key {}; there are a, b", quoted).what());
  };
  EXPECT_EQ(message(std::string(1000, 'x')).size(), 1000 + message("").size());
  const std::string cut = message(std::string(1'000'000, 'x'));
  EXPECT_LE(cut.size(), Error::kMostBytes);
  EXPECT_GE(cut.size(), Error::kMostBytes - 10);
  EXPECT_TRUE(cut.starts_with("unknown key xxx")) << cut;
  EXPECT_TRUE(cut.ends_with("xxx; there are a, b")) << cut;
  EXPECT_NE(cut.find("x [...] x"), std::string::npos) << cut;
}

TEST(Error, of_a_long_quotation_cuts_no_character_of_utf8) {
  for (const std::string shift : {"", "a", "aa"}) {
    std::string text = shift;
    for (int i = 0; i < 1000; ++i) text += "\u20ac";  // 3 bytes
    const std::string cut = Error(ErrorKind::kConfig, "{}", text).what();
    const size_t gap = cut.find(" [...] ");
    ASSERT_NE(gap, std::string::npos);
    EXPECT_EQ((gap - shift.size()) % 3, 0U);
    EXPECT_EQ((cut.size() - gap - 7) % 3, 0U);
    EXPECT_LE(cut.size(), Error::kMostBytes);
  }
}

TEST(FirstLine, is_one_line_without_the_place_in_the_source) {
  EXPECT_EQ(first_line(std::runtime_error("[/a/b/pair.cc:144] Connection closed by peer\nstack")),
            "Connection closed by peer");
  EXPECT_EQ(first_line(std::runtime_error("failed with [/a/pair.cc:152] timed out, [::1]:7$0")),
            "failed with timed out, [::1]:7$0");
  EXPECT_EQ(first_line(std::runtime_error("The client socket has timed out.")),
            "The client socket has timed out");
}

ExitMessage words_of(const auto& error) { return exit_message(std::make_exception_ptr(error)); }

TEST(ExitMessage, tell_bad_input_the_world_and_bugs_apart) {
  const ExitMessage bad = words_of(Error(ErrorKind::kData, "two\nlines"));
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_EQ(bad.line, "distca: error: two lines");
  const ExitMessage memory = words_of(std::bad_alloc());
  EXPECT_EQ(memory.exit_code, 1);
  EXPECT_EQ(memory.line, "distca: error: out of memory");
  const ExitMessage torch = words_of(
      std::runtime_error("[enforce fail at alloc.cpp:1] . DefaultCPUAllocator: can't allocate "
                         "memory: you tried to allocate 8 bytes. Error code 12\nstack"));
  EXPECT_EQ(torch.exit_code, 1);
  EXPECT_EQ(torch.line, "distca: error: out of memory: you tried to allocate 8 bytes");
  const ExitMessage threads =
      words_of(std::system_error(std::make_error_code(std::errc::too_many_files_open)));
  EXPECT_EQ(threads.exit_code, 1);
  const ExitMessage bug = words_of(CheckFailure("a.cc:1: no"));
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
