#include "distca/cost/link_price.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(LinkPrice, a_latency_a_message_and_the_bytes_rounded_up) {
  const Link link{.latency_ns = 700, .bytes_per_us = 3000};
  EXPECT_EQ(transfer_ns(link, 0, 0), 0);
  EXPECT_EQ(transfer_ns(link, 2, 0), 1400);
  EXPECT_EQ(transfer_ns(link, 1, 1), 701);
  EXPECT_EQ(transfer_ns(link, 1, 3), 701);
  EXPECT_EQ(transfer_ns(link, 1, 4), 702);
  EXPECT_EQ(transfer_ns(link, 3, 3'000'000), 2100 + 1'000'000);
}

TEST(LinkPrice, a_gibibyte_over_400_gigabits) {
  EXPECT_EQ(transfer_ns(Link{}, 1, int64_t{1} << 30), 20'000 + 21'474'837);
}

TEST(LinkPrice, does_not_overflow) {
  constexpr int64_t kHuge = int64_t{1} << 60;
  EXPECT_EQ(transfer_ns({.latency_ns = 0, .bytes_per_us = 1}, 1, kHuge), kMostTransferNs);
  EXPECT_EQ(transfer_ns({.latency_ns = kHuge, .bytes_per_us = 1}, kHuge, 0), kMostTransferNs);
  EXPECT_EQ(transfer_ns({.latency_ns = 5, .bytes_per_us = kHuge}, 1, kHuge), 1005);
  EXPECT_EQ(transfer_ns({.latency_ns = 5, .bytes_per_us = kHuge}, 1, 1), 6);
  EXPECT_EQ(transfer_ns({.latency_ns = 0, .bytes_per_us = 1000}, 1, kHuge - 1), kHuge - 1);
}

TEST(LinkPrice, no_byte_is_free) {
  EXPECT_EQ(byte_price({.bytes_per_us = 50'000}), 20);
  EXPECT_EQ(byte_price({.bytes_per_us = 2'000'000}), 1);
}

}  // namespace
}  // namespace distca
