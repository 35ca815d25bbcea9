#include "distca/report/metrics_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/batch/test_folder.h"

namespace distca {
namespace {

/// Returns the text that went to stderr since CaptureStderr.
std::string said_on_stderr() {
  standard_error().finish(kConsolePatience);
  return ::testing::internal::GetCapturedStderr();
}

using ::testing::HasSubstr;

constexpr double kPatience_s = 300;

/// Files end at so many bytes while this lives: what a full disk does, for one process.
class FullAt {
 public:
  explicit FullAt(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullAt() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

class MetricsFileTest : public FolderTest {
 protected:
  std::filesystem::path path() const { return folder_ / "metrics.jsonl"; }
};

TEST_F(MetricsFileTest, lines_follow_those_that_are_there_and_are_there_at_once) {
  write_file_atomically(path(), "old\n");
  MetricsFile file(path(), kPatience_s);
  EXPECT_EQ(read_file(path()), "old\n");
  file.add("{\"step\":1}");
  EXPECT_EQ(read_file(path()), "old\n{\"step\":1}\n");
  file.add("{\"step\":2}");
  EXPECT_EQ(file.finish(), 0);
  EXPECT_EQ(read_file(path()), "old\n{\"step\":1}\n{\"step\":2}\n");
}

// A pipe that nobody reads is such a disk.
TEST_F(MetricsFileTest, a_disk_that_hangs_delays_lines_and_holds_nobody_up) {
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  const FileDescriptor reader(open(path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  MetricsFile file(path(), 0.01);
  ::testing::internal::CaptureStderr();
  const std::string line(40'000, 'x');  // two of them are more than a pipe holds
  for (int i = 0; i < 10; ++i) file.add(line);
  const std::string said = said_on_stderr();
  EXPECT_THAT(said, HasSubstr("metrics.jsonl: a line is not written within 0.01 s: training goes"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  std::atomic<bool> ended = false;
  size_t bytes = 0;
  std::thread reads([&] {
    std::vector<char> some(1 << 16);
    while (true) {
      const bool last = ended;
      const ssize_t got = read(reader.get(), some.data(), some.size());
      if (got > 0) bytes += static_cast<size_t>(got);
      if (got > 0) continue;
      if (last) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_EQ(file.finish(), 0);
  ended = true;
  reads.join();
  EXPECT_EQ(bytes, 10 * (line.size() + 1));
}

TEST_F(MetricsFileTest, a_full_disk_costs_no_half_line_and_says_so_once) {
  MetricsFile file(path(), kPatience_s);
  const std::string first(995, 'x');  // the file of captured stderr has to fit, too
  file.add(first);
  ::testing::internal::CaptureStderr();
  std::string before;
  {
    const FullAt full(1000);
    file.add("second");  // four of its seven bytes would fit
    before = read_file(path());
    file.add("third");
    EXPECT_EQ(file.finish(), 2);
  }
  const std::string said = said_on_stderr();
  EXPECT_EQ(before, first + "\n");
  EXPECT_EQ(read_file(path()), first + "\n");
  EXPECT_THAT(said, HasSubstr("metrics.jsonl: cannot be written: "));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  // There is room again.
  file.add("fourth");
  EXPECT_EQ(file.finish(), 0);
  EXPECT_EQ(read_file(path()), first + "\nsecond\nthird\nfourth\n");
}

TEST_F(MetricsFileTest, of_more_than_it_keeps_the_oldest_lines_are_given_up) {
  MetricsFile file(path(), kPatience_s);
  ::testing::internal::CaptureStderr();
  {
    const FullAt full(0);
    for (char name : {'a', 'b', 'c'}) file.add(std::string(MetricsFile::kMostKept / 2 - 2, name));
    EXPECT_EQ(file.finish(), 3);
  }
  said_on_stderr();
  EXPECT_EQ(file.finish(), 1);
  EXPECT_TRUE(read_file(path()).starts_with("bb"));
}

TEST_F(MetricsFileTest, a_file_that_cannot_be_made_is_named) {
  try {
    MetricsFile file(folder_ / "absent" / "metrics.jsonl", kPatience_s);
    FAIL() << "opened a file in a folder that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_THAT(error.what(), HasSubstr("absent/metrics.jsonl: cannot be written: No such file"));
  }
}

}  // namespace
}  // namespace distca
