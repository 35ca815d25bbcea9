#include "distca/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

namespace distca {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("distca_file_test_{}_{}", getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  int64_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }

  fs::path folder_;
};

TEST_F(FileTest, what_was_written_is_read_and_mapped) {
  const fs::path path = folder_ / "new" / "a.txt";
  const std::string contents("one\0two", 7);
  write_file_atomically(path, contents);
  EXPECT_EQ(read_file(path), contents);
  const MappedFile mapped(path);
  ASSERT_EQ(mapped.size(), 7);
  EXPECT_TRUE(std::ranges::equal(mapped.bytes(), std::as_bytes(std::span(contents))));
}

TEST_F(FileTest, an_empty_file_maps_to_nothing) {
  write_file_atomically(folder_ / "empty", "");
  EXPECT_EQ(MappedFile(folder_ / "empty").size(), 0);
  EXPECT_EQ(read_file(folder_ / "empty"), "");
}

TEST_F(FileTest, an_uncommitted_file_leaves_the_old_one_and_nothing_else) {
  write_file_atomically(folder_ / "a", "old");
  {
    AtomicFile file(folder_ / "a");
    file.write("new");
    EXPECT_EQ(read_file(folder_ / "a"), "old");
  }
  EXPECT_EQ(read_file(folder_ / "a"), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileTest, a_process_that_ends_before_commit_leaves_nothing) {
  const int unnamed = open(folder_.c_str(), O_TMPFILE | O_WRONLY);
  if (unnamed < 0) GTEST_SKIP() << folder_ << ": its file system has no files without a name";
  close(unnamed);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    AtomicFile file(folder_ / "a");
    file.write("new");
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(files(), 0);
}

TEST_F(FileTest, a_file_is_replaced_by_the_new_one_alone) {
  write_file_atomically(folder_ / "a", "old");
  write_file_atomically(folder_ / fmt::format(".a.{}.tmp", getpid()), "left by a killed process");
  write_file_atomically(folder_ / "a", "new");
  EXPECT_EQ(read_file(folder_ / "a"), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileTest, a_missing_file_is_named_with_the_kind_asked_for) {
  try {
    read_file(folder_ / "absent", ErrorKind::kConfig);
    FAIL() << "read a file that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_NE(std::string(error.what()).find("absent: cannot be read: No such file"),
              std::string::npos);
  }
}

TEST_F(FileTest, a_folder_is_not_a_file) {
  EXPECT_THROW(read_file(folder_), Error);
  EXPECT_THROW(MappedFile{folder_}, Error);
}

TEST_F(FileTest, a_file_cannot_lie_below_a_file) {
  write_file_atomically(folder_ / "a", "x");
  EXPECT_THROW(write_file_atomically(folder_ / "a" / "b", "y"), Error);
}

TEST_F(FileTest, a_moved_mapping_has_one_owner) {
  write_file_atomically(folder_ / "a", "abc");
  MappedFile first(folder_ / "a");
  const MappedFile second(std::move(first));
  EXPECT_EQ(second.size(), 3);
}

}  // namespace
}  // namespace distca
