// Launches that may start their ranks again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "distca/comm/launch/launch_testing.h"

namespace distca {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kLost = "rank 1 was killed by signal 9 (SIGKILL) (last seen: step 3, ";

/// The runs that ranks said they belong to.
std::set<std::string> run_ids(const std::string& output) {
  std::set<std::string> ids;
  static const std::regex kAttempt("attempt [0-9]+ of ([^\n]*)");
  for (std::sregex_iterator match(output.begin(), output.end(), kAttempt), end; match != end;
       ++match) {
    ids.insert((*match)[1]);
  }
  return ids;
}

class RestartTest : public ::testing::TestWithParam<bool> {};

TEST_P(RestartTest, a_lost_rank_is_named_and_the_run_goes_on_to_its_end) {
  const bool fixed_port = GetParam();
  const Outcome outcome =
      launch({.mode = {"kill-once", "1"}, .port = fixed_port ? free_port() : 0, .max_restarts = 3});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("(^|\n)distca: rank 1 was killed by signal 9 "
                                            "\\(SIGKILL\\) .*; restart 1 of 3\n"));
  EXPECT_EQ(count(outcome.output, kLost), 1) << outcome.output;
  EXPECT_EQ(count_errors(outcome.output), 0) << outcome.output;
  for (const char* attempt : {"attempt 0 of ", "attempt 1 of "}) {
    EXPECT_EQ(count(outcome.output, attempt), 2) << outcome.output;
  }
  EXPECT_EQ(count(outcome.output, "done\n"), 2) << outcome.output;
  const std::set<std::string> ids = run_ids(outcome.output);
  ASSERT_EQ(ids.size(), 1u) << outcome.output;
  EXPECT_TRUE(std::regex_match(*ids.begin(), std::regex("[0-9a-f]{16}"))) << *ids.begin();
}

INSTANTIATE_TEST_SUITE_P(FixedPort, RestartTest, ::testing::Bool());

TEST(Restart, a_rank_that_is_lost_while_others_load_is_named_and_started_again) {
  // The others are ended by us, and what they say of that is no reason.
  const Outcome outcome = launch({.mode = {"loading", "1"}, .max_restarts = 1});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(
      outcome.output,
      ContainsRegex("(^|\n)distca: rank 1 was killed by signal 9 \\(SIGKILL\\).*; restart 1 "
                    "of 1\n"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("stopped by")));
  EXPECT_EQ(count(outcome.output, "done\n"), 2) << outcome.output;
}

TEST(Restart, launches_have_unlike_run_ids_and_pass_on_a_given_one) {
  const Outcome one = launch({.mode = {"ok"}}), other = launch({.mode = {"ok"}});
  EXPECT_EQ(run_ids(one.output).size(), 1u) << one.output;
  EXPECT_NE(run_ids(one.output), run_ids(other.output));
  const Outcome given =
      launch({.mode = {"ok"},
              .environment = {{"DISTCA_RUN_ID", "00000000000000a1"}, {"DISTCA_RESTART", "7"}}});
  EXPECT_EQ(run_ids(given.output), std::set<std::string>{"00000000000000a1"}) << given.output;
  EXPECT_EQ(count(given.output, "attempt 0 of "), 2) << given.output;
}

TEST(Restart, when_all_are_used_up_the_last_failure_is_reported) {
  const Outcome outcome = launch({.mode = {"exit", "1"}, .max_restarts = 2});
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.output, HasSubstr("distca: rank 1 exited with code 7"));
  EXPECT_THAT(outcome.output, ContainsRegex("distca: error: rank 1 exited with code 7.*; 2 "
                                            "restarts were used up\n$"));
  EXPECT_EQ(count(outcome.output, "; restart "), 2) << outcome.output;
  EXPECT_EQ(count_errors(outcome.output), 1) << outcome.output;
}

TEST(Restart, where_none_is_allowed_none_is_spoken_of) {
  const Outcome outcome = launch({.mode = {"exit", "1"}});
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.output, Not(HasSubstr("restart")));
}

TEST(Restart, what_would_fail_again_is_reported_at_once) {
  for (const std::vector<std::string>& mode :
       {std::vector<std::string>{"throw", "1"}, {"refuse"}, {"diverge"}}) {
    const Outcome outcome = launch({.mode = mode, .max_restarts = 3});
    EXPECT_EQ(outcome.exit_code, mode[0] == "diverge" ? 3 : 2);
    EXPECT_THAT(outcome.output, Not(HasSubstr("restart")));
    EXPECT_EQ(count_errors(outcome.output), 1) << outcome.output;
  }
}

}  // namespace
}  // namespace distca
