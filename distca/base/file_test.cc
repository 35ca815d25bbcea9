#include "distca/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <thread>

namespace {
std::atomic<bool> has_unnamed_files = true;  // the file system
}  // namespace

/// In the place of the C library's.
extern "C" int open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode =
      (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : mode_t{0};
  va_end(rest);
  if ((flags & O_TMPFILE) == O_TMPFILE && !has_unnamed_files) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

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

TEST_F(FileTest, folders_that_were_missing_go_where_they_stayed_empty) {
  fs::create_directories(folder_ / "there");
  {
    const MissingFolders empty(folder_ / "there" / "a" / "b"), used(folder_ / "there" / "c" / "d");
    create_folder(folder_ / "there" / "a" / "b");
    write_file_atomically(folder_ / "there" / "c" / "file", "x");
    create_folder(folder_ / "there" / "c" / "d");
  }
  EXPECT_FALSE(fs::exists(folder_ / "there" / "a"));
  EXPECT_TRUE(fs::exists(folder_ / "there" / "c" / "file"));
  EXPECT_FALSE(fs::exists(folder_ / "there" / "c" / "d"));
  { const MissingFolders none(folder_ / "there"); }
  EXPECT_TRUE(fs::exists(folder_ / "there"));
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

TEST_F(FileTest, a_link_is_followed_and_what_it_names_is_replaced) {
  write_file_atomically(folder_ / "there" / "a", "old");
  fs::create_symlink("there/a", folder_ / "relative");
  fs::create_symlink(folder_ / "relative", folder_ / "absolute");
  write_file_atomically(folder_ / "absolute", "new");
  EXPECT_EQ(read_file(folder_ / "there" / "a"), "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "relative"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "absolute"));

  fs::create_symlink("new folder/b", folder_ / "dangling");
  write_file_atomically(folder_ / "dangling", "b");
  EXPECT_EQ(read_file(folder_ / "new folder" / "b"), "b");
  EXPECT_TRUE(fs::is_symlink(folder_ / "dangling"));

  fs::create_symlink("circle", folder_ / "circle");
  EXPECT_THROW(write_file_atomically(folder_ / "circle", "x"), Error);
  EXPECT_TRUE(fs::is_symlink(folder_ / "circle"));
}

TEST_F(FileTest, a_link_under_a_temporary_name_is_not_followed) {
  const fs::path other = folder_ / "other";
  const fs::path temporary = folder_ / fmt::format(".a.{}.tmp", getpid());
  for (const bool unnamed : {false, true}) {
    has_unnamed_files = unnamed;
    write_file_atomically(other, "somebody's");
    fs::create_symlink("other", temporary);
    write_file_atomically(folder_ / "a", "new");
    EXPECT_EQ(read_file(other), "somebody's") << unnamed;
    EXPECT_EQ(read_file(folder_ / "a"), "new");
    EXPECT_FALSE(fs::is_symlink(folder_ / "a"));
    EXPECT_FALSE(fs::exists(fs::symlink_status(temporary)));
    fs::remove(folder_ / "a");
  }
  has_unnamed_files = true;
  fs::create_symlink("nothing yet", folder_ / "seen");
  make_new_file(folder_ / "seen");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / "seen")));
  EXPECT_EQ(files(), 2);
}

TEST_F(FileTest, what_appears_late_is_seen) {
  const fs::path late = folder_ / "run" / "file";
  EXPECT_FALSE(appears(late, 0));
  const std::jthread maker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    write_file_atomically(late, "");
  });
  EXPECT_TRUE(appears(late, 60));
}

TEST_F(FileTest, permissions_of_an_older_file_are_kept) {
  const fs::path path = folder_ / "a";
  write_file_atomically(path, "old");
  fs::permissions(path, fs::perms{0640});
  write_file_atomically(path, "new");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms{0640});
  EXPECT_EQ(read_file(path), "new");
}

TEST_F(FileTest, a_folder_in_the_place_of_a_file_is_refused_at_once) {
  fs::create_directory(folder_ / "a");
  try {
    AtomicFile file(folder_ / "a");
    FAIL() << "began to write a file that is a folder";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a: cannot be written: it is a folder"),
              std::string::npos);
  }
  EXPECT_TRUE(fs::is_directory(folder_ / "a"));
}

TEST_F(FileTest, a_device_is_written_into_and_stays) {
  fs::create_symlink("/dev/null", folder_ / "null");
  write_file_atomically(folder_ / "null", "x");
  EXPECT_TRUE(fs::is_character_file(folder_ / "null"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "null"));
  EXPECT_THROW(write_file_atomically("/dev/full", "x"), Error);
}

TEST_F(FileTest, a_pipe_is_written_into_and_stays) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_file_atomically(pipe, "through the pipe");
  char text[32] = {};
  EXPECT_EQ(read(reader, text, sizeof(text)), 16);
  close(reader);
  EXPECT_STREQ(text, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(FileTest, a_descriptor_of_ours_is_written_to_where_it_stands) {
  const int file = open((folder_ / "out").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(file, 0);
  ASSERT_EQ(write(file, "before ", 7), 7);
  write_file_atomically(fmt::format("/dev/fd/{}", file), "after");
  EXPECT_EQ(write(file, "!", 1), 1) << "it was closed";
  close(file);
  EXPECT_EQ(read_file(folder_ / "out"), "before after!");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileTest, space_that_is_not_there_is_refused_with_both_numbers) {
  write_file_atomically(folder_ / "a", "old");
  AtomicFile file(folder_ / "a");
  file.reserve(1 << 20);
  struct stat status {};
  try {
    file.reserve(int64_t{1} << 60);
    FAIL() << "an exabyte was free";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    const std::string what = error.what();
    EXPECT_NE(what.find("a: cannot be written: "), std::string::npos) << what;
    EXPECT_NE(what.find("are needed, "), std::string::npos) << what;
  }
  file.write("new");
  file.commit();
  ASSERT_EQ(stat((folder_ / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 3) << "what is reserved is no part of the file";
  EXPECT_EQ(read_file(folder_ / "a"), "new");
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

TEST_F(FileTest, pieces_are_read_ahead_where_they_follow_one_another) {
  const std::string contents = "0123456789";
  write_file_atomically(folder_ / "a", contents);
  const PiecewiseFile file(folder_ / "a");
  FileWindow window(file, /*least=*/4);
  const auto at = [&](int64_t offset, int64_t bytes) {
    return std::string(reinterpret_cast<const char*>(window.at(offset, bytes)), bytes);
  };
  EXPECT_EQ(at(0, 1), "0");
  fs::resize_file(folder_ / "a", 6);  // a part that was read ahead stays
  EXPECT_EQ(at(1, 3), "123");
  EXPECT_EQ(at(5, 1), "5") << "not behind the last: nothing is read ahead, which would fail";
  EXPECT_EQ(at(2, 2), "23");
  EXPECT_THROW(at(4, 1), Error) << "read ahead as far as the file went";
  EXPECT_THROW(at(6, 1), Error);
}

TEST_F(FileTest, a_moved_mapping_has_one_owner) {
  write_file_atomically(folder_ / "a", "abc");
  MappedFile first(folder_ / "a");
  const MappedFile second(std::move(first));
  EXPECT_EQ(second.size(), 3);
  EXPECT_EQ(first.size(), 0);  // NOLINT(bugprone-use-after-move)
}

}  // namespace
}  // namespace distca
