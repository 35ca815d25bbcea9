#include "distca/report/position_losses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/comm/ordered_sum.h"
#include "distca/comm/thread_group.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// One target at each position, with a loss of its own.
PositionLosses at(const std::vector<int64_t>& positions, double loss) {
  PositionLosses result;
  result.add(loss * static_cast<double>(positions.size()),
             std::vector<double>(positions.size(), loss), std::vector<int64_t>(positions.size(), 3),
             positions);
  return result;
}

std::vector<std::vector<int64_t>> of_bands(const PositionLosses& losses) {
  std::vector<std::vector<int64_t>> bands;
  for (const PositionBand& band : losses.bands())
    bands.push_back({band.begin, band.end, band.targets});
  return bands;
}

TEST(PositionLosses, bands_begin_at_powers_of_4_from_1024_on) {
  EXPECT_THAT(PositionLosses().bands(), IsEmpty());
  using Band = std::vector<int64_t>;
  EXPECT_THAT(of_bands(at({0, 1, 1023}, 1)), ElementsAre(Band{0, 1024, 3}));
  EXPECT_THAT(of_bands(at({1023, 1024, 4095, 4096, 16383, 65535, 65536}, 1)),
              ElementsAre(Band{0, 1024, 1}, Band{1024, 4096, 2}, Band{4096, 16384, 2},
                          Band{16384, 65536, 1}, Band{65536, 262144, 1}));
  const int64_t far = int64_t{1} << 30;
  EXPECT_THAT(of_bands(at({far - 1, far, int64_t{1} << 40}, 1)),
              ElementsAre(Band{far / 4, far, 1}, Band{far, 4 * far, 2}));
}

TEST(PositionLosses, adds_up_what_has_a_target) {
  PositionLosses losses;
  EXPECT_FALSE(losses.mean());
  const std::vector<double> rows = {1, 100, 3, 5};
  const std::vector<int64_t> targets = {7, -100, 0, 9}, positions = {0, 1, 2000, 3000};
  losses.add(9.5, rows, targets, positions);
  losses += at({5, 6}, 2);
  EXPECT_EQ(losses.values()[0], 13.5);
  EXPECT_EQ(losses.mean(), 13.5 / 5);
  const std::vector<PositionBand> bands = losses.bands();
  ASSERT_EQ(bands.size(), 2u);
  EXPECT_EQ(bands[0].targets, 3);
  EXPECT_EQ(bands[0].loss(), 5.0 / 3);
  EXPECT_EQ(bands[1].targets, 2);
  EXPECT_EQ(bands[1].loss(), 4);
}

TEST(PositionLosses, are_summed_over_ranks) {
  run_ranks(3, {}, [](Communicator& comm) {
    PositionLosses losses = comm.rank() == 1 ? PositionLosses() : at({10, 2000}, comm.rank() + 1);
    ordered_sum(comm, losses.values(), "losses");
    EXPECT_EQ(losses.values()[0], 2 + 6);
    const std::vector<PositionBand> bands = losses.bands();
    ASSERT_EQ(bands.size(), 2u);
    EXPECT_EQ(bands[1].targets, 2);
    EXPECT_EQ(bands[1].loss(), 2);
  });
}

}  // namespace
}  // namespace distca
