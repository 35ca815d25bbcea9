#include "distca/comm/local_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "distca/base/error.h"

namespace distca {
namespace {

TEST(LocalDevice, is_that_of_the_ranks_number_or_the_only_one_it_sees) {
  struct Case {
    int local_rank;
    LocalDevices devices;
    std::optional<int> device;
  };
  const LocalDevices shared{.visible = 2, .may_share = true};
  const Case cases[] = {{0, {.visible = 1}, 0},  {7, {.visible = 1}, 0},  {0, {.visible = 2}, 0},
                        {1, {.visible = 2}, 1},  {7, {.visible = 8}, 7},  {0, {.visible = 0}, {}},
                        {2, {.visible = 2}, {}}, {9, {.visible = 4}, {}}, {5, shared, 1}};
  for (const auto& [local_rank, devices, device] : cases) {
    SCOPED_TRACE(::testing::Message() << "rank " << local_rank << ", " << devices.visible);
    if (device) {
      EXPECT_EQ(local_device(local_rank, devices), *device);
    } else {
      EXPECT_THROW(local_device(local_rank, devices), Error);
    }
  }
}

std::string refusal_of_call(const std::function<void()>& wrong) {
  try {
    wrong();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(LocalDevice, a_refusal_says_what_is_visible_and_what_would_do) {
  EXPECT_EQ(refusal_of_call([] { local_device(4, {.visible = 4, .names = "0,1,2,3"}); }),
            "rank 4 of this machine, counted from 0, has no CUDA device: 4 are visible "
            "(CUDA_VISIBLE_DEVICES=0,1,2,3); start at most 4 ranks on it, or show each rank one "
            "device of its own");
  EXPECT_EQ(refusal_of_call([] { local_device(0, {.visible = 0}); }),
            "rank 0 of this machine, counted from 0, sees no CUDA device (CUDA_VISIBLE_DEVICES is "
            "not set, or empty)");
}

TEST(LocalDevice, more_ranks_than_devices_are_refused_before_they_start) {
  EXPECT_EQ(refusal_of_call([] { check_local_devices(2, {.visible = 1, .names = "3"}); }),
            "comm.backend = nccl: 2 ranks on this machine, and 1 CUDA devices are visible "
            "(CUDA_VISIBLE_DEVICES=3): NCCL takes one rank a device; start fewer ranks, or set "
            "comm.backend=threads, where ranks share one");
  EXPECT_EQ(refusal_of_call([] { check_local_devices(2, {.visible = 2}); }), "");
  EXPECT_EQ(refusal_of_call([] { check_local_devices(3, {.visible = 1, .may_share = true}); }), "");
}

}  // namespace
}  // namespace distca
