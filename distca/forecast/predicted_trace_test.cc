#include "distca/forecast/predicted_trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/json.h"
#include "distca/forecast/simulate_run.h"
#include "distca/forecast/simulate_testing.h"

namespace distca {
namespace {

using ::testing::ElementsAre;

/// A simulated step, and its trace.
struct Traced {
  SimulatedStep step;
  Json file;

  /// The sum of the lengths of a rank's events of a kind, in nanoseconds.
  int64_t ns(int rank, const std::string& kind) const {
    int64_t sum = 0;
    for (const Json& event : file["traceEvents"]) {
      if (event["ph"] == "X" && event["cat"] == kind && event["pid"] == rank)
        sum += std::llround(event["dur"].get<double>() * 1e3);
    }
    return sum;
  }
};

Traced traced(const std::vector<std::string>& overrides, int workers,
              int64_t most_lines = kMostTraceLines) {
  std::vector<std::string> words = kModel;
  words.emplace_back("batch.nano_batches=4");
  words.insert(words.end(), overrides.begin(), overrides.end());
  Batch batch;
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {12000, 3000, 1384}, {9000, 7000, 384}, {16384}, {2000, 14384}})
    batch.push_back({.nano_batch = NanoBatch::from_lengths(lengths), .sources = {}});
  std::string text;
  const TraceRequest request{
      .step = 7, .write = [&](std::string_view part) { text += part; }, .most_lines = most_lines};
  Traced made;
  made.step = simulate_step(load_config("", words), batch, workers, machine_by_name("h200"),
                            {.trace = &request});
  made.file = parse_json(text, "the trace");
  return made;
}

const std::vector<std::string> kStages = {"parallel.pipeline_model_parallel_size=2",
                                          "servers.dedicated=1"};
const std::vector<std::string> kDivided = {"parallel.tensor_model_parallel_size=2",
                                           "parallel.use_distributed_optimizer=true"};

TEST(PredictedTrace, a_rank_computes_as_long_as_the_step_says_and_its_step_lasts_as_long) {
  for (const auto& [overrides, workers] :
       {std::pair{std::vector<std::string>{"train.overlap=within"}, 3}, std::pair{kStages, 4}}) {
    const Traced made = traced(overrides, workers);
    const auto& ranks = made.file["otherData"]["ranks"];
    ASSERT_EQ(ranks.size(), made.step.traced_ranks.size());
    EXPECT_FALSE(made.step.is_trace_shortened);
    double computed_s = 0;
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
      EXPECT_EQ(made.ns(rank, "step"), std::llround(made.step.seconds * 1e9));
      EXPECT_FALSE(ranks[static_cast<size_t>(rank)].contains("rank")) << "all are there";
      computed_s += 1e-9 * static_cast<double>(made.ns(rank, "compute"));
      int64_t parts = 0;
      for (const char* kind : {"compute", "copy", "launch", "wait"}) parts += made.ns(rank, kind);
      // Nothing lies between events: the network's threads take nothing of this machine's core.
      EXPECT_EQ(parts, made.ns(rank, "step")) << rank;
    }
    EXPECT_NEAR(computed_s / static_cast<double>(ranks.size()), made.step.busy_s, 1e-6);
  }
}

TEST(PredictedTrace, the_file_says_what_was_predicted_and_which_step) {
  const Traced made = traced(kStages, 4);
  const Json& other = made.file["otherData"];
  EXPECT_EQ(other["predicted"], Json({{"machine", "h200"}, {"num_ranks", 5}, {"alike", 1}}));
  EXPECT_EQ(other["overlap"], "ping-pong");
  std::vector<int> stages;
  for (const Json& rank : other["ranks"]) stages.push_back(rank.value("stage", -1));
  EXPECT_THAT(stages, ElementsAre(0, 0, 1, 1, -1));
  EXPECT_EQ(other["ranks"][4]["role"], "server");
  for (const Json& event : made.file["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_EQ(event["args"]["step"], 7);
    EXPECT_EQ(event["cat"] == "step", event["name"] == "step 7");
  }
}

TEST(PredictedTrace, of_ranks_that_are_alike_the_first_is_there) {
  const Traced made = traced(kDivided, 4);
  const Json& other = made.file["otherData"];
  EXPECT_THAT(made.step.traced_ranks, ElementsAre(0, 2));
  EXPECT_EQ(other["predicted"], Json({{"machine", "h200"}, {"num_ranks", 4}, {"alike", 2}}));
  EXPECT_EQ(other["ranks"][1]["rank"], 2);
  EXPECT_EQ(other["ranks"][1]["tensor"], 0);
  EXPECT_GT(made.ns(2, "compute"), 0);
  EXPECT_EQ(made.ns(1, "compute"), 0);
}

TEST(PredictedTrace, one_that_is_too_long_has_of_each_stage_who_computes_longest) {
  const Traced all = traced(kStages, 4), few = traced(kStages, 4, /*most_lines=*/1000);
  EXPECT_TRUE(few.step.is_trace_shortened);
  const auto longer = [&](int a, int b) {
    return all.ns(a, "compute") >= all.ns(b, "compute") ? a : b;
  };
  EXPECT_THAT(few.step.traced_ranks, ElementsAre(longer(0, 1), longer(2, 3), 4));
  EXPECT_EQ(few.file["otherData"]["ranks"].size(), 3u);
  EXPECT_EQ(few.file["otherData"]["predicted"]["num_ranks"], 5);
  for (const int rank : few.step.traced_ranks) {
    for (const char* kind : {"step", "compute", "copy", "launch", "wait", "flight"})
      EXPECT_EQ(few.ns(rank, kind), all.ns(rank, kind)) << rank << " " << kind;
  }
}

}  // namespace
}  // namespace distca
