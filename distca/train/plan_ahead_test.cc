#include "distca/train/plan_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "distca/base/error.h"
#include "distca/batch/test_folder.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Plans `count` batches, then none.
PlanAhead::PlanNext batches(int count, std::function<PlannedBatch(const Speeds&)> plan) {
  return [left = count, plan](const Speeds& speeds) mutable -> std::optional<PlannedBatch> {
    if (left == 0) return std::nullopt;
    --left;
    return plan(speeds);
  };
}

TEST(PlanAhead, batches_come_in_order_and_one_is_planned_while_another_is_used) {
  const std::thread::id here = std::this_thread::get_id();
  std::atomic<int> planned{0};
  PlanAhead ahead(batches(3, [&](const Speeds&) {
    EXPECT_NE(std::this_thread::get_id(), here);
    return PlannedBatch{.figures = {.tokens = ++planned}};
  }));
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(ahead.next().figures.tokens, i);
    // The next one is planned without being asked for.
    const int want = std::min(i + 1, 3);
    for (int wait = 0; planned < want && wait < 60'000; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(planned, want);
  }
  EXPECT_THROW(ahead.next(), CheckFailure);
}

TEST(PlanAhead, plans_with_the_speeds_of_the_moment_when_it_starts) {
  PlanAhead ahead(batches(3,
                          [](const Speeds& speeds) {
                            return PlannedBatch{.figures = {.tokens = speeds.from_step}};
                          }),
                  Speeds{.from_step = 10});
  EXPECT_EQ(ahead.next(Speeds{.from_step = 20}).figures.tokens, 10);
  EXPECT_EQ(ahead.next(Speeds{.from_step = 30}).figures.tokens, 20);
  EXPECT_EQ(ahead.next(Speeds{.from_step = 40}).figures.tokens, 30);
}

TEST(PlanAhead, what_goes_wrong_while_planning_is_thrown_when_the_batch_is_wanted) {
  int planned = 0;
  PlanAhead ahead(batches(3, [&](const Speeds&) {
    if (++planned == 2) throw Error(ErrorKind::kPlan, "does not fit");
    return PlannedBatch{};
  }));
  ahead.next();
  try {
    ahead.next();
    FAIL() << "not thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPlan);
    EXPECT_STREQ(error.what(), "does not fit");
  }
}

TEST(PlanAhead, its_end_waits_for_what_is_being_planned) {
  std::atomic<bool> done{false};
  {
    PlanAhead ahead(batches(1, [&](const Speeds&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      done = true;
      return PlannedBatch{};
    }));
  }
  EXPECT_TRUE(done);
}

class PlanBatchTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    IndexedDatasetWriter writer(folder_ / "data", TokenType::kUint8);
    for (const int64_t length : {700, 90, 300}) {
      writer.add_document(std::vector<int32_t>(length, 7));
    }
    writer.finish();
    config_.batch.nano_batch_tokens = 512;
    config_.batch.nano_batches = 2;
    config_.batch.max_document_tokens = 512;
  }

  static double pairs_of(const PlannedBatch& rank, size_t nano) {
    return static_cast<double>(rank.input.program.exchanges[nano]->pairs_of(TaskSet::kAll));
  }

  std::vector<PlannedBatch> plan(int workers, const Speeds& speeds = {}) {
    const DataBlend data(folder_ / "data");
    BatchStream stream(data.document_lengths(), {0, 1, 2}, config_.batch);
    const Batch batch = stream.next();
    std::vector<PlannedBatch> ranks;
    for (int rank = 0; rank < num_ranks(config_, workers); ++rank) {
      ranks.push_back(plan_batch(config_, data, {batch}, rank, workers, speeds));
    }
    return ranks;
  }

  Config config_;
};

TEST_F(PlanBatchTest, ranks_agree_on_the_plans_and_share_the_tokens) {
  const std::vector<PlannedBatch> ranks = plan(3);
  int64_t tokens = 0;
  for (const PlannedBatch& rank : ranks) {
    EXPECT_EQ(rank.figures.hash, ranks[0].figures.hash);
    EXPECT_EQ(rank.figures.tokens, 1024);
    EXPECT_EQ(rank.figures.load_after, ranks[0].figures.load_after);
    EXPECT_THAT(rank.figures.load_after, SizeIs(3));
    EXPECT_THAT(rank.figures.attention_predicted_s, IsEmpty()) << "nothing predicts time";
    EXPECT_GT(rank.figures.plan_s, 0);
    EXPECT_GT(rank.figures.validate_s, 0);
    ASSERT_THAT(rank.input.program.exchanges, SizeIs(2));
    for (size_t nano = 0; nano < 2; ++nano) {
      const int64_t local = rank.input.program.exchanges[nano]->rows.local_tokens;
      EXPECT_EQ(static_cast<int64_t>(rank.input.tokens[nano].ids.size()), local);
      tokens += local;
    }
  }
  EXPECT_EQ(tokens, 1024);
}

TEST_F(PlanBatchTest, ranks_that_divide_layers_have_the_work_of_their_server) {
  config_.parallel.tensor_model_parallel_size = 2;
  const std::vector<PlannedBatch> ranks = plan(4);
  for (const int first : {0, 2}) {
    EXPECT_EQ(ranks[first].work.tokens, ranks[first + 1].work.tokens);
    EXPECT_EQ(ranks[first].work.load, ranks[first + 1].work.load);
  }
}

TEST_F(PlanBatchTest, a_dedicated_server_has_tasks_and_no_tokens) {
  config_.servers.dedicated = 1;
  const std::vector<PlannedBatch> ranks = plan(2);
  ASSERT_THAT(ranks, SizeIs(3));
  EXPECT_EQ(ranks[2].figures.hash, ranks[0].figures.hash);
  EXPECT_THAT(ranks[2].figures.load_after, SizeIs(3));
  EXPECT_EQ(ranks[2].figures.load_before[2], 0) << "plain packing knows workers only";
  int64_t pairs = 0;
  EXPECT_THAT(ranks[2].input.tokens, IsEmpty());
  for (const auto& exchange : ranks[2].input.program.exchanges) {
    EXPECT_EQ(exchange->rows.local_tokens, 0);
    EXPECT_THAT(exchange->rows.tasks, ::testing::Not(IsEmpty()));
    pairs += exchange->pairs_of(TaskSet::kAll);
  }
  EXPECT_EQ(pairs, ranks[0].figures.load_after[2]);
  EXPECT_GE(ranks[0].figures.imbalance_after, 1);
}

TEST_F(PlanBatchTest, a_rank_can_check_the_programs_of_all_ranks_and_of_an_evaluation) {
  config_.servers.dedicated = 1;
  const DataBlend data(folder_ / "data");
  BatchStream stream(data.document_lengths(), {0, 1, 2}, config_.batch);
  const StepBatch batch{
      .batch = stream.next(), .kind = ProgramRequest::Kind::kEvaluate, .checks_all_ranks = true};
  const PlannedBatch planned = plan_batch(config_, data, batch, /*rank=*/2, /*num_workers=*/2);
  for (const Op& op : planned.input.program.ops) EXPECT_EQ(op.pass, Pass::kForward);
}

TEST_F(PlanBatchTest, a_rank_that_is_twice_as_slow_gets_the_load_that_it_finishes_with_the_other) {
  config_.servers.reweight = true;
  config_.plan.tolerance = {.share = 0};
  config_.batch.nano_batch_tokens = 8192;                 // tasks are small compared with it
  constexpr int64_t kLinearPs = 20'000, kPairPs = 1'000;  // a token, a pair
  const Speeds slow{.from_step = 9,
                    .ranks = {{kLinearPs, 1'000 * kPairPs}, {2 * kLinearPs, 2'000 * kPairPs}}};
  for (const Overlap overlap : {Overlap::kNone, Overlap::kPingPong}) {
    config_.train.overlap = overlap;
    const std::vector<PlannedBatch> even = plan(2), uneven = plan(2, slow);
    EXPECT_EQ(even[0].figures.speeds_from_step, 0);
    EXPECT_EQ(uneven[0].figures.speeds_from_step, 9);
    for (size_t nano = 0; nano < 2; ++nano) {
      const auto share_of_slow = [&](const std::vector<PlannedBatch>& ranks) {
        const auto first = pairs_of(ranks[0], nano);
        const auto second = pairs_of(ranks[1], nano);
        return second / (first + second);
      };
      EXPECT_NEAR(share_of_slow(even), 0.5, 0.01) << overlap_name(overlap) << " " << nano;
      // Blocking evens attention alone; under ping-pong both have a T with
      // (T - linear) / pair + (T - 2 linear) / (2 pair) = pairs.
      const double pairs = pairs_of(even[0], nano) + pairs_of(even[1], nano);
      const double linear = overlap == Overlap::kNone ? 0 : kLinearPs * 8192 / 2;
      const double finish = (pairs * kPairPs + 2 * linear) / 1.5;
      const double want = (finish - 2 * linear) / (2 * kPairPs) / pairs;
      EXPECT_LT(want, 0.34);
      EXPECT_NEAR(share_of_slow(uneven), want, 0.01) << overlap_name(overlap) << " " << nano;
    }
  }
}

TEST_F(PlanBatchTest, a_window_leaves_fewer_pairs_to_compute) {
  const int64_t all = plan(2)[0].figures.pairs;
  config_.model.sliding_window = 128;
  const int64_t window = plan(2)[0].figures.pairs;
  EXPECT_LT(window, all);
  EXPECT_LE(window, 1024 * 128);
}

TEST_F(PlanBatchTest, where_windows_differ_loads_are_those_of_the_mean_of_all_layers) {
  config_.model.num_hidden_layers = 4;
  const PlanFigures full = plan(2)[0].figures;
  config_.model.sliding_window = 128;
  const PlanFigures sliding = plan(2)[0].figures;
  config_.model.layer_types = {"sliding_attention", "full_attention", "sliding_attention",
                               "sliding_attention"};
  const std::vector<PlannedBatch> ranks = plan(2);
  const PlanFigures& both = ranks[0].figures;
  EXPECT_NEAR(both.pairs, (full.pairs + 3 * sliding.pairs) / 4, 8);  // rounded for each plan
  EXPECT_EQ(both.load_after[0] + both.load_after[1], both.pairs);
  EXPECT_NEAR(both.load_before[0] + both.load_before[1], both.pairs, 8);
  EXPECT_GT(both.imbalance_before, 1.1);
  EXPECT_LT(both.imbalance_after, 1.1);
  EXPECT_EQ(ranks[1].figures.hash, both.hash);
  ASSERT_THAT(ranks[0].input.tokens, SizeIs(2));
  for (size_t nano = 0; nano < 2; ++nano) {
    const int64_t local = ranks[0].input.program.exchanges[2 * nano + 1]->rows.local_tokens;
    EXPECT_EQ(static_cast<int64_t>(ranks[0].input.tokens[nano].ids.size()), local);
  }
}

TEST_F(PlanBatchTest, with_a_profile_each_server_has_a_predicted_time_over_all_layers) {
  config_.attention_profile = profile_by_name("h200");
  config_.model.num_hidden_layers = 1;
  const std::vector<double> one = plan(2)[0].figures.attention_predicted_s;
  config_.model.num_hidden_layers = 3;
  const std::vector<double> three = plan(2)[0].figures.attention_predicted_s;
  ASSERT_THAT(one, SizeIs(2));
  for (size_t server = 0; server < 2; ++server) {
    EXPECT_GT(one[server], 0);
    EXPECT_DOUBLE_EQ(three[server], 3 * one[server]);
  }
}

}  // namespace
}  // namespace distca
