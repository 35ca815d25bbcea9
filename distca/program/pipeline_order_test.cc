#include "distca/program/pipeline_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/error.h"

namespace distca::testing {
namespace {

using ::testing::ElementsAre;

TEST(PipelineOrder, an_exchange_pools_what_its_tick_has_in_its_slot) {
  const PipelineOrder order = pooled_order({.layers = {{0, 2}, {2, 4}}, .nano_batches = 3},
                                           aligned_ticks(2, 2, /*trains=*/true));
  std::vector<std::string> pooled;
  for (const OrderedExchange& exchange : order.exchanges) {
    EXPECT_EQ(exchange.layer_steps, 2);
    std::string text = exchange.pass == Pass::kForward ? "F" : "B";
    for (const int nano : exchange.nano_batches)
      text += nano < 0 ? '-' : static_cast<char>('a' + nano);
    pooled.push_back(std::to_string(exchange.tick) + text);
  }
  // Micro-batches are a with b, and c alone.
  EXPECT_THAT(pooled, ElementsAre("0Fa-", "0Fb-", "1Fca", "1F-b", "2B-a", "2B-b", "3F-c", "4Bac",
                                  "4Bb-", "5Bc-"));
}

TEST(PipelineOrder, layer_steps_that_not_all_stages_have_are_exchanges_of_their_own) {
  const PipelineOrder order =
      pooled_order({.layers = {{0, 3}, {3, 4}}, .nano_batches = 2, .slots = 1},
                   aligned_ticks(2, 2, /*trains=*/true));
  // In forward's second tick: b on stage 0 with a on stage 1, then the rest of stage 0.
  EXPECT_EQ(order.exchanges[1].nano_batches, (std::vector{1, 0}));
  EXPECT_EQ(order.exchanges[1].layer_steps, 1);
  EXPECT_EQ(order.exchanges[2].nano_batches, (std::vector{1, -1}));
  EXPECT_EQ(order.exchanges[2].layer_steps, 2);
  const std::vector<Visit>&first = order.visits[0][0], &second = order.visits[1][0];
  EXPECT_EQ(first[1].layers, (Range{0, 1}));
  EXPECT_EQ(first[2].layers, (Range{1, 3}));
  EXPECT_EQ(second[1].layers, (Range{3, 4}));
  EXPECT_EQ(second[2].nano_batch, -1);
  // In backward, too, the layer steps that all have come first: the highest layers.
  const auto backward = std::ranges::find(first, Pass::kBackward, &Visit::pass) + 1;
  EXPECT_EQ(backward->nano_batch, -1) << "of the second stage alone was the first one";
}

TEST(PipelineOrder, neighbours_send_and_receive_in_the_same_order) {
  for (const bool aligned : {true, false}) {
    const int stages = 5;
    const PipelineShape shape{.layers = {{0, 1}, {1, 3}, {3, 4}, {4, 6}, {6, 7}},
                              .nano_batches = 7};
    const PipelineOrder order =
        pooled_order(shape, aligned ? aligned_ticks(stages, 4, /*trains=*/true)
                                    : one_forward_one_backward_ticks(stages, 4));
    for (int slot = 0; slot < shape.slots; ++slot) {
      for (int stage = 0; stage + 1 < stages; ++stage) {
        // [visit] what goes between the two, seen from either.
        const auto seen = [&](int from, bool next) {
          std::vector<std::vector<std::pair<Pass, int>>> result;
          for (const Visit& visit : order.visits[from][slot]) {
            result.emplace_back();
            for (const P2pOp& what : visit.p2p_ops) {
              const bool with_next = (what.pass == Pass::kForward) != what.is_receive;
              if (with_next == next) result.back().emplace_back(what.pass, what.nano_batch);
            }
          }
          return result;
        };
        EXPECT_EQ(seen(stage, true), seen(stage + 1, false));
      }
    }
  }
}

TEST(PipelineOrder, visits_know_the_tick_in_which_their_stage_plays_them) {
  const PipelineShape shape{.layers = {{0, 1}, {1, 4}, {4, 5}}, .nano_batches = 5, .slots = 1};
  const std::vector<Tick> ticks = aligned_ticks(3, 5, /*trains=*/true);
  for (const PipelineOrder& order : {pooled_order(shape, ticks), at_home_order(shape, ticks)}) {
    for (int stage = 0; stage < 3; ++stage) {
      int last = 0;
      for (const Visit& visit : order.visits[stage][0]) {
        ASSERT_GE(visit.tick, last);
        last = visit.tick;
        if (visit.nano_batch < 0) continue;
        EXPECT_EQ(ticks[last].stages[stage],
                  (TickStage{.micro_batch = visit.nano_batch, .pass = visit.pass}));
      }
      EXPECT_EQ(last + 1, std::ssize(ticks));
    }
  }
}

TEST(PipelineOrder, attention_at_home_has_one_slot) {
  EXPECT_THROW(at_home_order({.layers = {{0, 1}}, .nano_batches = 1, .slots = 2}, {}),
               CheckFailure);
}

TEST(PipelineOrder, rows_go_to_the_same_replica_of_the_next_stage) {
  const P2pMessages messages = p2p_messages({.index = 1, .count = 3, .layers = {2, 4}}, 4, 3, 640);
  EXPECT_EQ(messages.with_previous.messages[0].peer, 1);
  EXPECT_EQ(messages.with_next.messages[0].peer, 7);
  EXPECT_EQ(messages.with_next.bytes, 640);
  EXPECT_TRUE(p2p_messages({.index = 2, .count = 3}, 7, 3, 640).with_next.empty());
  EXPECT_TRUE(p2p_messages({.index = 1, .count = 3}, 4, 3, 0).with_next.empty());
}

}  // namespace
}  // namespace distca::testing
