#include "distca/cost/cluster.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(TransferPrice, a_latency_a_message_and_the_bytes_rounded_up) {
  const Link link{.latency_ns = 700, .bytes_per_us = 3000};
  EXPECT_EQ(transfer_ns(link, 0, 0), 0);
  EXPECT_EQ(transfer_ns(link, 2, 0), 1400);
  EXPECT_EQ(transfer_ns(link, 1, 1), 701);
  EXPECT_EQ(transfer_ns(link, 1, 3), 701);
  EXPECT_EQ(transfer_ns(link, 1, 4), 702);
  EXPECT_EQ(transfer_ns(link, 3, 3'000'000), 2100 + 1'000'000);
}

TEST(TransferPrice, a_gibibyte_over_400_gigabits) {
  EXPECT_EQ(transfer_ns(Link{}, 1, int64_t{1} << 30), 20'000 + 21'474'837);
}

TEST(TransferPrice, does_not_overflow) {
  constexpr int64_t kHuge = int64_t{1} << 60;
  EXPECT_EQ(transfer_ns({.latency_ns = 0, .bytes_per_us = 1}, 1, kHuge), kMostTransferNs);
  EXPECT_EQ(transfer_ns({.latency_ns = kHuge, .bytes_per_us = 1}, kHuge, 0), kMostTransferNs);
  EXPECT_EQ(transfer_ns({.latency_ns = 5, .bytes_per_us = kHuge}, 1, kHuge), 1005);
  EXPECT_EQ(transfer_ns({.latency_ns = 5, .bytes_per_us = kHuge}, 1, 1), 6);
  EXPECT_EQ(transfer_ns({.latency_ns = 0, .bytes_per_us = 1000}, 1, kHuge - 1), kHuge - 1);
}

TEST(Cluster, ranks_of_a_node_are_joined_by_the_link_inside) {
  Cluster cluster = Cluster::in_place(5);
  cluster.inside = {.latency_ns = 1, .bytes_per_us = 1'000'000};
  EXPECT_EQ(cluster.link(0, 1), cluster.between);  // every rank is a node of its own
  cluster.ranks_per_node = 2;
  EXPECT_EQ(cluster.link(0, 1), cluster.inside);
  EXPECT_EQ(cluster.link(1, 2), cluster.between);
  EXPECT_EQ(cluster.link(3, 2), cluster.inside);
  EXPECT_EQ(cluster.link(4, 3), cluster.between);
}

}  // namespace
}  // namespace distca
