#include "distca/report/run_follower.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <fstream>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/batch/test_folder.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunFollowerTest : public FolderTest {
 protected:
  std::filesystem::path path() const { return folder_ / "metrics.jsonl"; }
  void add(const std::string& text) const { std::ofstream(path(), std::ios::app) << text; }
};

TEST_F(RunFollowerTest, gives_each_whole_line_once) {
  add("one\ntwo\nthr");
  RunFollower run(folder_);
  EXPECT_THAT(run.read().lines, ElementsAre("one", "two"));
  EXPECT_THAT(run.read().lines, IsEmpty());
  add("ee\n");
  EXPECT_THAT(run.read().lines, ElementsAre("three"));
  EXPECT_EQ(run.line_number(), 3);
  EXPECT_FALSE(run.read().from_start);
}

TEST_F(RunFollowerTest, begins_again_where_the_run_went_on_from_an_earlier_step) {
  add("one\ntwo\nthree\n");
  RunFollower run(folder_);
  run.read();
  std::filesystem::resize_file(path(), 4);
  // Shorter than before, as long, and longer.
  for (const std::string text : {"2\n", "again\nthree\n", "again\nanother three\nfour\n"}) {
    add(text);
    const RunFollower::News news = run.read();
    EXPECT_TRUE(news.from_start) << text;
    EXPECT_THAT(news.lines.front(), "one") << text;
    EXPECT_FALSE(run.read().from_start) << text;
    std::filesystem::resize_file(path(), 4);
  }
}

TEST_F(RunFollowerTest, a_file_of_many_megabytes_comes_in_parts) {
  const std::string line(5000, 'x'), longest(3 << 20, 'y');
  for (int i = 0; i < 1000; ++i) add(line + "\n");
  add(longest + "\n");
  RunFollower run(folder_);
  size_t lines = 0, parts = 0;
  std::string last;
  for (RunFollower::News news = run.read(); !news.lines.empty(); news = run.read()) {
    lines += news.lines.size();
    last = news.lines.back();
    ++parts;
  }
  EXPECT_EQ(lines, 1001u);
  EXPECT_GT(parts, 4u);
  EXPECT_TRUE(last == longest);
}

TEST_F(RunFollowerTest, knows_whether_a_run_is_writing) {
  add("one\n");
  const RunFollower run(folder_);
  EXPECT_FALSE(run.is_written());
  {
    const FileDescriptor lock(open(path().c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(flock(lock.get(), LOCK_EX | LOCK_NB), 0);
    EXPECT_TRUE(run.is_written());
  }
  EXPECT_FALSE(run.is_written());
}

TEST_F(RunFollowerTest, a_folder_of_no_run_is_refused) {
  try {
    RunFollower run(folder_);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), HasSubstr(": not the folder of a run: it has no metrics.jsonl"));
  }
}

}  // namespace
}  // namespace distca
