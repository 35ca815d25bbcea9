#include "distca/comm/device_facts.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

/// A driver of two devices, whose handles are not their numbers.
CudaDriver two_devices() {
  return {.init = [](unsigned flags) { return flags == 0 ? 0 : 1; },
          .device_count =
              [](int* count) {
                *count = 2;
                return 0;
              },
          .device_get =
              [](int* device, int ordinal) {
                *device = 70 + ordinal;
                return ordinal < 2 ? 0 : 101;
              },
          .total_memory =
              [](size_t* bytes, int device) {
                *bytes = device == 70 ? size_t{80} << 30 : size_t{141} << 30;
                return 0;
              },
          .attribute =
              [](int* value, int attribute, int device) {
                *value = 100 * (device - 69) + attribute;
                return 0;
              }};
}

TEST(DeviceFacts, are_the_drivers_answers_for_each_device_that_is_visible) {
  const std::vector<DeviceFacts> devices = visible_devices(two_devices());
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].bytes, int64_t{80} << 30);
  EXPECT_EQ(devices[1].bytes, int64_t{141} << 30);
  EXPECT_EQ(devices[0].multiprocessors, 100 + kMultiprocessors);
  EXPECT_EQ(devices[1].multiprocessors, 200 + kMultiprocessors);
}

TEST(DeviceFacts, are_not_known_where_the_driver_refuses_one_of_them) {
  CudaDriver no_device = two_devices();
  no_device.init = [](unsigned) { return 100; };
  EXPECT_TRUE(visible_devices(no_device).empty());
  CudaDriver lost = two_devices();
  lost.total_memory = [](size_t*, int device) { return device == 70 ? 0 : 999; };
  EXPECT_TRUE(visible_devices(lost).empty());
}

}  // namespace
}  // namespace distca
