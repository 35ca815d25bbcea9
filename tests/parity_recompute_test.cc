// Linear phases that are computed again in backward (train.recompute), and a loss by chunks of rows
// (train.loss_chunk_tokens), against a step that keeps everything.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/parity_testing.h"

namespace distca::parity {
namespace {

const char* name_of(Recompute recompute) {
  return recompute == Recompute::kSelective ? "selective" : "full";
}

TEST(parity_recompute, has_the_bits_of_keeping_everything) {
  constexpr std::array kTypes = {ScalarType::kFloat64, ScalarType::kFloat32, ScalarType::kBFloat16};
  size_t next = 0;  // types and batches take turns
  for (const Play& play : plays()) {
    StepRun step{.model = small_llama(2, kTypes[next % kTypes.size()]),
                 .documents = batches()[next % batches().size()],
                 .workers = 3,
                 .planner = "greedy",
                 .play = play};
    step.model.tie_word_embeddings = next++ % 2 == 1;
    const Outcome kept = run(step);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      step.options.recompute = recompute;
      const Outcome again = run(step);
      expect_same_bits(again, kept, parity::name_of(play) + ", " + name_of(recompute));
      EXPECT_EQ(again.bytes_sent, kept.bytes_sent) << "nothing travels again";
    }
  }
}

TEST(parity_recompute, evaluates_the_same) {
  StepRun step{.model = small_llama(2, ScalarType::kBFloat16),
               .documents = batches()[0],
               .workers = 2,
               .planner = "greedy",
               .play = {.overlap = Overlap::kPingPong},
               .evaluate = true};
  const double loss = run(step).loss;
  step.options.recompute = Recompute::kFull;
  EXPECT_EQ(run(step).loss, loss);
}

TEST(parity_recompute, by_several_chunks_of_rows_holds_the_result) {
  constexpr int64_t kChunk = 256, kLong = 2 * kChunk + 75;
  for (const bool redispatched : {false, true}) {
    StepRun step{.model = small_llama(2, ScalarType::kFloat64),
                 .documents = {"long", {{kLong, 300, 41}, {400, kLong}}},
                 .workers = 1,
                 .planner = "local"};
    const Outcome whole = run(step);
    step.play = {.overlap = Overlap::kPingPong, .redispatched = redispatched};
    step.planner = "balanced";
    step.options.recompute = Recompute::kFull;
    step.options.chunk_rows = kChunk;
    step.options.loss_chunk_tokens = 100;
    step.workers = 2;
    expect_same(run(step), whole, 1e-10, 1e-12, redispatched ? "redispatched" : "kept");
  }
}

}  // namespace
}  // namespace distca::parity
