#include "bench/child_process.h"

#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "distca/base/clock.h"
#include "distca/base/error.h"

namespace distca::bench {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ChildProcess, answers_lines_of_any_length_with_lines) {
  ChildProcess child("cat", {"/bin/cat"});
  const std::string longer(200'000, 'x');  // than a pipe holds at once, or one read takes
  child.write_line("short");
  EXPECT_EQ(child.read_line("an answer"), "short");
  child.write_line(longer.substr(0, 60'000) + "\nsecond");
  EXPECT_EQ(child.read_line("an answer"), longer.substr(0, 60'000));
  EXPECT_EQ(child.read_line("an answer"), "second");
}

TEST(ChildProcess, that_says_nothing_in_time_is_named) {
  ChildProcess child("the rival", {"/bin/cat"}, 0.05);
  EXPECT_EQ(message_of([&] { child.read_line("answer to run"); }),
            "the rival: no answer to run in time");
}

TEST(ChildProcess, that_has_ended_is_named) {
  ChildProcess child("the rival", {"/bin/true"});
  EXPECT_EQ(message_of([&] { child.read_line("answer to run"); }),
            "the rival ended without answer to run");
  // The system takes a moment to close the other end.
  const auto write = [&] { return message_of([&] { child.write_line("run"); }); };
  const Stopwatch watch;
  while (write() == "no error" && watch.seconds() < 30) continue;
  EXPECT_EQ(write(), "the rival has ended");
}

TEST(ChildProcess, that_cannot_be_run_is_named) {
  EXPECT_THAT(message_of([] { ChildProcess("the rival", {"/no/such/program"}); }),
              HasSubstr("the rival: cannot run /no/such/program"));
}

TEST(ChildProcess, is_gone_soon_after_its_end_of_input) {
  const Stopwatch watch;
  { ChildProcess child("cat", {"/bin/cat"}); }
  EXPECT_LT(watch.seconds(), 4) << "it had to be killed";
}

}  // namespace
}  // namespace distca::bench
