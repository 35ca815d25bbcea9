#include "distca/base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "distca/base/file.h"

namespace distca {
namespace {

class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              fmt::format("distca_cgroup_{}_{}", getpid(), info->name());
    places_ = {.root = folder_ / "sys", .own = folder_ / "own"};
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// A group with this text in one of its files.
  void group(const std::string& path, const char* file, const std::string& text) {
    write_file_atomically(places_.root / path / file, text + "\n");
    write_file_atomically(places_.root / path / "cgroup.procs", "");
  }
  void own(const std::string& text) { write_file_atomically(places_.own, text); }

  std::filesystem::path folder_;
  CgroupPlaces places_;
};

TEST_F(CgroupTest, the_least_limit_up_to_the_root_holds) {
  own("0::/job/task\n");
  group("job", "memory.max", "3000000");
  group("job/task", "memory.max", "max");
  EXPECT_EQ(cgroup_memory_limit(places_), 3000000);
  group("job/task", "memory.max", "2000000");
  EXPECT_EQ(cgroup_memory_limit(places_), 2000000);
  group("job", "memory.max", "1000000");
  EXPECT_EQ(cgroup_memory_limit(places_), 1000000);
}

TEST_F(CgroupTest, a_container_sees_its_own_group_as_the_root) {
  own("0::/docker/0123\n");  // a path of the host
  group("", "memory.max", "5000000");
  EXPECT_EQ(cgroup_memory_limit(places_), 5000000);
}

TEST_F(CgroupTest, the_old_hierarchy_is_read_too) {
  own("12:cpu,cpuacct:/a\n7:hugetlb,memory:/a/b\n0::/\n");
  group("memory/a", "memory.limit_in_bytes", "4000000");
  group("memory/a/b", "memory.limit_in_bytes", "9223372036854771712");  // none
  EXPECT_EQ(cgroup_memory_limit(places_), 4000000);
  EXPECT_EQ(own_cgroup(places_.root / "memory", "memory", places_), places_.root / "memory/a/b");
}

TEST_F(CgroupTest, without_a_limit_there_is_none) {
  EXPECT_EQ(cgroup_memory_limit(places_), std::nullopt);
  own("0::/job\n");
  group("job", "memory.max", "max");
  EXPECT_EQ(cgroup_memory_limit(places_), std::nullopt);
  EXPECT_EQ(own_cgroup(places_.root, "", places_), places_.root / "job");
}

}  // namespace
}  // namespace distca
