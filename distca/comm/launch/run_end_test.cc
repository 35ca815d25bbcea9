#include "distca/comm/launch/run_end.h"

#include <gtest/gtest.h>

#include <csignal>

namespace distca {
namespace {

int exited(int code) { return code << 8; }
int killed_by(int signal) { return signal; }

const std::string kSaved = "distca: stopped by SIGTERM; saved";
const std::string kFull = "distca: error: No space left on device";

void expect(const RunEnd& end, int exit_code, const std::string& line) {
  const ExitMessage words = exit_message_of(end);
  EXPECT_EQ(words.exit_code, exit_code) << words.line;
  EXPECT_EQ(words.line, line);
}

TEST(RunEnd, describes_statuses) {
  EXPECT_EQ(describe_exit(exited(3)), "exited with code 3");
  EXPECT_EQ(describe_exit(killed_by(SIGKILL)), "was killed by signal 9 (SIGKILL)");
  for (const int status : {exited(130), killed_by(SIGINT), killed_by(SIGTERM), killed_by(SIGHUP),
                           killed_by(SIGUSR1)}) {
    EXPECT_TRUE(was_stopped(status)) << status;
  }
  for (const int status : {exited(0), exited(1), exited(2), killed_by(SIGKILL), killed_by(SIGSEGV)})
    EXPECT_FALSE(was_stopped(status)) << status;
}

TEST(RunEnd, a_victim_of_another_rank_is_not_the_failure) {
  RunEnd end{.ranks = {{exited(1), "distca: error: rank 1 exited with code 7 (last seen: step 3)"},
                       {exited(7)}},
             .failed = {0, 1},
             .diagnosis = "rank 1 exited with code 7 (last seen: step 3)"};
  expect(end, 7, "distca: error: rank 1 exited with code 7 (last seen: step 3)");
  end.failed = {0};
  expect(end, 1, end.ranks[0].exit_message);
}

TEST(RunEnd, after_a_stop_rank_0_says_what_is_saved_and_decides) {
  RunEnd end{.ranks = {{exited(0), kSaved}, {exited(0)}}, .signal = SIGTERM};
  expect(end, 0, kSaved);
  end.ranks[1].status = killed_by(SIGKILL);  // by us, for it did not end
  expect(end, 0, kSaved);
  end.ranks[0].status = exited(130);
  expect(end, 130, kSaved);
  end.failed = {1};
  expect(end, 130, kSaved);
  end.ranks[0] = {killed_by(SIGTERM)};
  end.failed = {};
  expect(end, 130,
         "distca: stopped by SIGTERM; rank 0 did not say at which step; what is saved is in the "
         "run's checkpoints");
  end.ranks[0] = {exited(0)};
  expect(end, 0, "distca: stopped by SIGTERM; rank 0 had ended: the weights are saved");
}

TEST(RunEnd, a_stop_that_only_ranks_noticed_is_reported) {
  expect({.ranks = {{exited(0), kSaved}, {exited(0)}}}, 0, kSaved);
  expect({.ranks = {{exited(130), kSaved}, {exited(130)}}, .failed = {1, 0}}, 130, kSaved);
  const RunEnd end{.ranks = {{exited(1), kFull}, {exited(0)}}, .failed = {0}};
  expect(end, 1, kFull);
}

TEST(RunEnd, what_ranks_say_of_our_own_signal_is_no_stop) {
  const std::string kEarly = "distca: stopped by SIGTERM before the first step";
  const std::string kDead = "distca: error: rank 1 was killed by signal 11 (SIGSEGV)";
  for (const int of_first : {exited(130), exited(0), killed_by(SIGTERM)}) {
    expect(
        {.ranks = {{of_first, kEarly, /*ended_by_us=*/true}, {killed_by(SIGSEGV)}}, .failed = {1}},
        1, kDead);
  }
  // Somebody else's signal came after the failure, or rank 0 was stopped first.
  RunEnd end{.ranks = {{exited(130), kEarly}, {killed_by(SIGSEGV)}}, .failed = {1, 0}};
  expect(end, 1, kDead);
  end.failed = {0, 1};
  expect(end, 130, kEarly);
}

TEST(RunEnd, a_failure_while_a_stop_is_under_way_is_reported) {
  RunEnd end{.ranks = {{exited(1), kFull}, {exited(0)}}, .failed = {0}, .signal = SIGTERM};
  expect(end, 1, kFull);
  end = {.ranks = {{exited(0), kSaved}, {exited(1), kFull}}, .failed = {1}, .signal = SIGTERM};
  expect(end, 1, kFull);
  EXPECT_EQ(message_beside(kFull, end), kSaved);
}

TEST(RunEnd, a_victim_of_a_rank_that_a_stop_ended_is_stopped_too) {
  const std::string diagnosis = "rank 1 was killed by signal 15 (SIGTERM) (last seen: start-up)";
  expect({.ranks = {{exited(1), "distca: error: " + diagnosis}, {killed_by(SIGTERM)}},
          .failed = {0},
          .signal = SIGTERM,
          .diagnosis = diagnosis},
         130,
         "distca: stopped by SIGTERM; rank 0 did not say at which step; what is saved is in the "
         "run's checkpoints");
}

TEST(RunEnd, a_failure_before_a_stop_is_reported) {
  const RunEnd end{.ranks = {{exited(130), kSaved}, {exited(1), kFull}},
                   .failed = {1},
                   .signal = SIGTERM,
                   .failed_first = true};
  expect(end, 1, kFull);
  EXPECT_EQ(message_beside(kFull, end), kSaved);
}

TEST(RunEnd, only_a_warning_or_what_a_stop_saved_is_said_beside_the_last_words) {
  RunEnd end{.ranks = {{exited(0), "distca: warning: part of the output is lost"}}};
  EXPECT_EQ(message_beside("", end), end.ranks[0].exit_message);
  end.ranks[0].exit_message = kSaved;
  EXPECT_EQ(message_beside("", end), "");  // it was us who stopped it, after a failure
  end.signal = SIGTERM;
  EXPECT_EQ(message_beside(kSaved, end), "");
  end.ranks[0].exit_message = kFull;
  EXPECT_EQ(message_beside("", end), "");
}

}  // namespace
}  // namespace distca
