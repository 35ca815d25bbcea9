#include "distca/base/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/test_terminal.h"

namespace distca {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr double kLong = 200;  // seconds that nothing takes

/// A pipe of one page.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    fcntl(ends_[1], F_SETPIPE_SZ, 4096);
  }
  ~Pipe() {
    close_reader();
    close(ends_[1]);
  }

  int in() const { return ends_[1]; }
  void fill() {
    const std::string page(4096, '-');
    EXPECT_EQ(write(ends_[1], page.data(), page.size()), 4096);
  }
  void close_reader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  /// Returns what has come, once it ends with `end` or after kLong seconds.
  std::string read_until(const std::string& end) {
    std::string text;
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    for (const Stopwatch watch; !text.ends_with(end) && watch.seconds() < kLong;) {
      char buffer[512];
      const ssize_t got = read(ends_[0], buffer, sizeof(buffer));
      if (got > 0) text.append(buffer, static_cast<size_t>(got));
      if (got <= 0) std::this_thread::sleep_for(milliseconds(1));
    }
    return text;
  }

 private:
  int ends_[2];
};

TEST(Console, lines_come_in_order) {
  Pipe pipe;
  Console console(pipe.in());
  for (int i = 0; i < 100; ++i) console.line(std::to_string(i));
  console.finish(kLong);
  const std::string text = pipe.read_until("99\n");
  EXPECT_TRUE(text.starts_with("0\n1\n2\n3\n")) << text;
  EXPECT_THAT(text, EndsWith("\n98\n99\n"));
}

TEST(Console, progress_is_a_line_where_there_is_no_terminal) {
  Pipe pipe;
  Console console(pipe.in());
  console.progress("a");
  console.progress("b");
  console.keep_progress();
  EXPECT_EQ(pipe.read_until("b\n"), "a\nb\n");
}

TEST(Console, nobody_waits_for_a_pipe_that_nobody_reads_and_dropped_lines_are_counted) {
  Pipe pipe;
  pipe.fill();
  Console console(pipe.in(), {.capacity = 100});
  const Stopwatch watch;
  for (int i = 0; i < 1000; ++i) console.line(fmt::format("line {}", i));
  console.important("the end");
  console.finish(0.2);
  EXPECT_LT(watch.seconds(), kLong / 2);
  const std::string text = pipe.read_until("the end\n");
  EXPECT_THAT(text, EndsWith(" lines not shown\nthe end\n"));
  // All lines are either there, in order, or counted where they would stand.
  int next = 0, shown = 0, dropped = 0;
  std::istringstream lines(text.substr(text.find_first_not_of('-')));  // behind the filling
  for (std::string line; std::getline(lines, line);) {
    if (std::sscanf(line.c_str(), "... %d lines not shown", &dropped) == 1) {
      next += dropped;
    } else if (line.starts_with("line ")) {
      EXPECT_EQ(line, fmt::format("line {}", next++));
      ++shown;
    }
  }
  EXPECT_EQ(next, 1000);
  EXPECT_GT(shown, 1);
}

TEST(Console, lines_dropped_last_are_counted_too) {
  Pipe pipe;
  pipe.fill();
  Console console(pipe.in(), {.capacity = 20});
  // There is room for one line, in addition to the one that the thread may have taken already.
  for (int i = 0; i < 5; ++i) console.line("0123456789");
  std::string text;
  int shown = 0, dropped = 0;
  for (const Stopwatch watch; shown + dropped < 5 && watch.seconds() < kLong;) {
    text += pipe.read_until("\n");
    shown = dropped = 0;
    std::istringstream lines(text.substr(text.find_first_not_of('-')));  // behind the filling
    for (std::string line; std::getline(lines, line);) {
      int lost = 0;
      if (std::sscanf(line.c_str(), "... %d line", &lost) == 1) dropped += lost;
      shown += line == "0123456789";
    }
  }
  EXPECT_EQ(shown + dropped, 5) << text;
  EXPECT_GE(shown, 1);
  EXPECT_GE(dropped, 1);
}

TEST(Console, a_reader_that_is_gone_is_not_waited_for) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.close_reader();
  Console console(pipe.in());
  const Stopwatch watch;
  for (int i = 0; i < 1000; ++i) console.line("word");
  console.finish(kLong);
  EXPECT_LT(watch.seconds(), kLong / 2);
}

TEST(Console, a_closed_descriptor_is_a_reader_that_is_gone) {
  Console console(-1);
  const Stopwatch watch;
  console.line("word");
  console.finish(kLong);
  EXPECT_LT(watch.seconds(), kLong / 2);
}

TEST(Console, a_slow_reader_gets_everything) {
  Pipe pipe;
  pipe.fill();
  Console console(pipe.in());
  for (int i = 0; i < 1000; ++i) console.line("0123456789");
  console.important("end");
  std::string text;
  std::thread reader([&] { text = pipe.read_until("end\n"); });
  console.finish(kLong);
  reader.join();
  EXPECT_EQ(text.size(), 4096 + 1000 * 11 + 4u);
}

TEST(ConsoleOnATerminal, progress_is_overwritten_and_lines_take_its_place) {
  TestTerminal terminal;
  Console console(terminal.fd());
  ASSERT_TRUE(console.is_terminal());
  EXPECT_EQ(console.columns(), 80u);
  for (const char* text : {"a long first step", "step 2"}) {
    console.progress(text);
    console.finish(kLong);
  }
  console.line("step 3 measured");
  console.progress("step 4");
  console.keep_progress();
  console.keep_progress();
  console.line("the end");
  console.finish(kLong);
  EXPECT_THAT(terminal.screen(), ElementsAre("step 3 measured", "step 4", "the end", ""));
}

TEST(ConsoleOnATerminal, who_shares_it_begins_on_a_line_of_its_own) {
  TestTerminal terminal;
  Console of_rank_0(terminal.fd()), of_launcher(terminal.fd(), {.shared = true});
  of_rank_0.progress("step 2 with a long line");
  of_rank_0.finish(kLong);
  of_launcher.line("an error");
  of_launcher.finish(kLong);
  EXPECT_THAT(terminal.screen(), ElementsAre("an error", ""));
}

TEST(ConsoleOnATerminal, while_it_is_paused_only_the_newest_progress_waits) {
  TestTerminal terminal;
  Console console(terminal.fd());
  terminal.pause();
  for (int i = 0; i < 100'000; ++i) console.progress(fmt::format("step {}", i));
  const Stopwatch watch;
  console.finish(0.2);
  EXPECT_LT(watch.seconds(), kLong / 2);
  EXPECT_EQ(terminal.written(), "");
  terminal.resume();
  console.finish(kLong);
  EXPECT_LT(terminal.written().size(), 100u);
  EXPECT_THAT(terminal.screen(), ElementsAre("step 99999"));
}

TEST(Console, what_comes_later_comes_unless_something_is_said_before) {
  Pipe pipe;
  Console console(pipe.in());
  console.line("begin");
  console.progress_after(0.05, "step 1 is under way");
  EXPECT_THAT(pipe.read_until("way\n"), HasSubstr("begin\nstep 1 is under way\n"));
  // On a machine so busy that the line comes late, the progress may be shown before: it is tried
  // with more time then.
  for (double after_s = 1; after_s < 300; after_s *= 3) {
    const Stopwatch watch;
    console.progress_after(after_s, "step 2 is under way");
    console.line("step 2");
    if (watch.seconds() > after_s) {
      pipe.read_until("step 2\n");
      continue;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(1.5 * after_s));
    break;
  }
  console.line("end");
  EXPECT_EQ(pipe.read_until("end\n"), "step 2\nend\n");
}

}  // namespace
}  // namespace distca
