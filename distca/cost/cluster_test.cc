#include "distca/cost/cluster.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

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
