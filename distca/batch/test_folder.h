#pragma once
// A test fixture with a folder for the files of one test. The folder is removed when the test ends.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace distca {

class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("distca_{}_{}_{}", getpid(), info->test_suite_name(), info->name());
    std::filesystem::remove_all(folder_);  // an earlier process may have left it
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

}  // namespace distca
