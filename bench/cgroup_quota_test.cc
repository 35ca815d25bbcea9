#include "bench/cgroup_quota.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "distca/base/clock.h"
#include "distca/base/error.h"

namespace distca::bench {
namespace {

double own_processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class CgroupQuotaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      quota_.emplace();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::optional<CgroupQuota> quota_;
};

TEST_F(CgroupQuotaTest, a_process_gets_no_more_than_half_a_core_while_it_is_on) {
  quota_->run(true);
  const Stopwatch watch;
  const double before = own_processor_seconds();
  // Other processes may leave it less than half a core for a while, and then the quota has nothing
  // to take.
  while (own_processor_seconds() - before < 0.2 ||
         (quota_->taken_seconds() < 0.05 && watch.seconds() < 60)) {
  }
  const double share = (own_processor_seconds() - before) / watch.seconds();
  EXPECT_LT(share, 0.56);
  if (share > 0.45) {
    EXPECT_GT(quota_->taken_seconds(), 0.05);
  }
  quota_->run(false);
  const double taken = quota_->taken_seconds();
  const double off = own_processor_seconds();
  while (own_processor_seconds() - off < 0.1) {
  }
  EXPECT_LT(quota_->taken_seconds() - taken, 0.02) << "after it was turned off";
}

TEST_F(CgroupQuotaTest, its_group_ends_with_it) {
  const std::string folder = quota_->folder();
  EXPECT_TRUE(std::filesystem::exists(folder));
  quota_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(CgroupQuotaTest, what_a_killed_process_left_goes_with_the_next) {
  quota_.reset();
  const pid_t child = fork();
  if (child == 0) {
    const CgroupQuota quota;
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto gone = [&] {
    quota_.emplace();
    std::string left = quota_->folder();
    left.replace(left.rfind('-') + 1, std::string::npos, std::to_string(child));
    quota_.reset();
    return !std::filesystem::exists(left);
  };
  for (const Stopwatch watch; !gone() && watch.seconds() < 10;) usleep(10'000);
  EXPECT_TRUE(gone());
}

}  // namespace
}  // namespace distca::bench
