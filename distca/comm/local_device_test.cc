#include "distca/comm/local_device.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "distca/base/build_info.h"
#include "distca/base/error.h"
#include "distca/comm/nccl_group.h"

namespace distca {
namespace {

TEST(LocalDevice, is_the_rank_s_number_or_the_only_one_it_sees) {
  struct Case {
    int local_rank, visible;
    std::optional<int> device;
  };
  const Case cases[] = {{0, 1, 0}, {1, 1, 0},  {7, 1, 0},  {0, 2, 0},  {1, 2, 1},  {3, 8, 3},
                        {7, 8, 7}, {0, 0, {}}, {3, 0, {}}, {2, 2, {}}, {8, 8, {}}, {9, 4, {}}};
  for (const auto& [local_rank, visible, device] : cases) {
    SCOPED_TRACE(::testing::Message() << "rank " << local_rank << ", " << visible << " visible");
    if (device) {
      EXPECT_EQ(local_device(local_rank, visible, ""), *device);
    } else {
      EXPECT_THROW(local_device(local_rank, visible, ""), Error);
    }
  }
}

std::string refusal(int local_rank, int visible, const std::string& names) {
  try {
    local_device(local_rank, visible, names);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(LocalDevice, a_refusal_says_what_is_visible_and_what_would_do) {
  EXPECT_EQ(refusal(4, 4, "0,1,2,3"),
            "rank 4 of this machine, counted from 0, has no CUDA device: 4 are visible "
            "(CUDA_VISIBLE_DEVICES=0,1,2,3); start at most 4 ranks on it, or give each one device "
            "of its own");
  EXPECT_EQ(refusal(0, 0, ""),
            "rank 0 of this machine sees no CUDA device (CUDA_VISIBLE_DEVICES is not set)");
}

// These two are of the ordinary build, whose PyTorch has no CUDA: what is said names that reason.
TEST(LocalDevice, nccl_says_why_it_is_not_built_in) {
  if (*build_info::kCuda && std::string(build_info::kCuda) != "none")
    GTEST_SKIP() << "this PyTorch has CUDA";
  try {
    check_nccl_built();
    FAIL() << "built in without CUDA";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_EQ(std::string(error.what()),
              std::string("this build has no NCCL: PyTorch ") + build_info::kTorch +
                  " has no CUDA, use one that has; ranks as threads need none "
                  "(comm.backend=threads)");
  }
}

TEST(LocalDevice, more_ranks_than_devices_are_refused_before_they_start) {
  if (at::hasCUDA()) GTEST_SKIP() << "a device is there";
  try {
    check_local_devices(2);
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), testing::StartsWith("2 ranks with comm.backend = nccl want a CUDA "
                                                  "device each, 0 are visible; fewer --workers"));
  }
}

}  // namespace
}  // namespace distca
