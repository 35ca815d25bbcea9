// Interleaved 1F1B, in which each stage of a pipeline holds several runs of layers.

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "distca/program/pipeline_testing.h"
#include "distca/sim/player.h"

namespace distca::testing {
namespace {

TEST(VirtualStages, are_played_one_after_another) {
  PipelineStyle style{.layers = {2, 2},
                      .lengths = uneven_lengths(2),
                      .replicas = 2,
                      .order = Order::kAtHome,
                      .virtual_stages = 2,
                      .gradients = {.bucket_elements = 400}};
  const std::vector<Program> programs = pipeline_programs(style);
  EXPECT_EQ(layers_played(programs[0]), "0a 0b 2a 2b 2a' 2b' 0a' 0b' ");
  EXPECT_EQ(layers_played(programs[2]), "1a 1b 3a 3a' 3b 3b' 1a' 1b' ");
  // Each nano-batch goes three times from a virtual stage to the next one and back, and what is
  // sent to a rank is received there under the same tag.
  std::map<std::tuple<int, int, uint32_t>, int64_t> bytes;  // sender, receiver, tag
  int p2p = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (const Op& op : programs[rank].ops) {
      if (op.stream != Stream::kComm) continue;
      if (op.kind == OpKind::kP2p && !op.is_receive) ++p2p;
      for (const PeerMessage& to : programs[rank].sends(op).messages)
        bytes[{rank, programs[rank].rank_of(op, to.peer), op.tag}] += to.bytes;
      for (const PeerMessage& from : programs[rank].receives(op).messages)
        bytes[{programs[rank].rank_of(op, from.peer), rank, op.tag}] -= from.bytes;
    }
  }
  EXPECT_EQ(p2p, 2 * 2 * 2 * 3);
  for (const auto& [key, left] : bytes) EXPECT_EQ(left, 0) << std::get<2>(key);
}

TEST(VirtualStages, divide_the_bubble_of_1f1b) {
  constexpr int kStages = 4, kMicroBatches = 8;
  for (const int virtual_stages : {1, 2, 4}) {
    const std::vector<Program> programs =
        pipeline_programs({.layers = std::vector<int64_t>(kStages, 4),
                           .lengths = std::vector<std::vector<int64_t>>(kMicroBatches, {64}),
                           .order = Order::kAtHome,
                           .virtual_stages = virtual_stages});
    // Forward of a layer takes 1 us, backward 2.
    const RatePrices prices([](int, const Op& op) {
      return op.kind == OpKind::kPreAttention ? op.pass == Pass::kForward ? 1e-6 : 2e-6 : 0;
    });
    EXPECT_EQ(
        timed_step(programs, prices, {}).length_ps,
        (kMicroBatches + (kStages - 1) / static_cast<double>(virtual_stages)) * 4 * 3 * 1'000'000)
        << virtual_stages;
  }
}

}  // namespace
}  // namespace distca::testing
