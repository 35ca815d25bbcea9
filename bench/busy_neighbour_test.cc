#include "bench/busy_neighbour.h"

#include <gtest/gtest.h>

#include "distca/base/clock.h"

namespace distca::bench {
namespace {

/// Processor time that it takes in a tenth of a second, or more where that is not enough.
double taken(const BusyNeighbour& neighbour, double at_least, double most_s) {
  const double before = neighbour.taken_seconds();
  const Stopwatch watch;
  while (watch.seconds() < 0.1 ||
         (neighbour.taken_seconds() - before < at_least && watch.seconds() < most_s)) {
  }
  return neighbour.taken_seconds() - before;
}

TEST(BusyNeighbour, it_computes_while_it_runs_and_only_then) {
  BusyNeighbour neighbour;
  EXPECT_LT(taken(neighbour, 0, 0), 0.02) << "before it was told to";
  neighbour.run(true);
  EXPECT_GT(taken(neighbour, 0.02, 20), 0.02);
  neighbour.run(false);
  EXPECT_LT(taken(neighbour, 0, 0), 0.02) << "after it was told to stop";
}

}  // namespace
}  // namespace distca::bench
