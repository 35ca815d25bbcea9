// Traces of pipelines, as distca trace reads them: of steps that ranks as threads play, and of
// programs of all sizes.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/batch/test_folder.h"
#include "distca/program/pipeline_testing.h"
#include "distca/runtime/executor_testing.h"
#include "distca/trace/chrome.h"
#include "tests/pipeline_parity_testing.h"
#include "tests/run_command.h"

namespace distca::parity {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Order;
using testing::PipelineStyle;
using ::testing::SizeIs;
using testing::succeed;

/// [tick] Its passes, and the stages that work in it.
using TickWork = std::pair<std::vector<std::string>, std::vector<int>>;

std::vector<TickWork> work_of(const std::vector<Tick>& ticks) {
  std::vector<TickWork> all;
  for (const Tick& tick : ticks) {
    auto& [passes, stages] = all.emplace_back();
    for (int stage = 0; stage < std::ssize(tick.stages); ++stage) {
      if (tick.stages[stage].micro_batch < 0) continue;
      stages.push_back(stage);
      const std::string pass = pass_name(tick.stages[stage].pass);
      if (std::ranges::count(passes, pass) == 0) passes.push_back(pass);
    }
    std::ranges::sort(passes, std::greater());  // forward first
  }
  return all;
}

std::vector<TickWork> work_of(const Json& analysis) {
  std::vector<TickWork> all;
  for (size_t i = 0; i < analysis.at("ticks").size(); ++i) {
    const Json& tick = analysis["ticks"][i];
    EXPECT_EQ(tick.at("tick"), i);
    all.emplace_back(tick.at("passes"), tick.at("stages"));
  }
  return all;
}

Json analysed(const std::filesystem::path& file) {
  return parse_json(succeed({"trace", "--json", file}).out, "what distca trace says");
}

/// The parts of each step and of the total add up to it to the nanosecond.
void expect_parts_add_up(const Json& of_rank) {
  std::vector<Json> sums = of_rank.at("steps");
  sums.push_back(of_rank.at("total"));
  for (const Json& sum : sums) {
    int64_t parts = 0;
    for (const auto& [name, ns] : sum.at("parts").items()) parts += ns.get<int64_t>();
    EXPECT_EQ(parts, sum.at("step_ns"));
  }
}

class PipelineTrace : public FolderTest {
 protected:
  /// Plays it and expects these ticks in its trace.
  PipelineOutcome expect_ticks(PipelineRun what, const std::vector<Tick>& ticks) {
    what.trace = folder_ / "trace.json";
    const PipelineOutcome outcome = run(what);
    const Json analysis = analysed(what.trace);
    EXPECT_EQ(analysis.at("unmatched_waits"), 0);
    EXPECT_EQ(analysis.at("stages"), what.stages());
    EXPECT_EQ(work_of(analysis), work_of(ticks));
    EXPECT_THAT(analysis.at("ranks"), SizeIs(what.ranks()));
    for (int rank = 0; rank < what.ranks(); ++rank) {
      const Json& of_rank = analysis.at("ranks").at(rank);
      expect_parts_add_up(of_rank);
      const Json& parts = of_rank.at("total").at("parts");
      EXPECT_EQ(of_rank.contains("tensor"), what.tensor > 1);
      if (const int stage = what.grid().stage(rank / what.tensor); stage >= 0) {
        EXPECT_EQ(of_rank.at("stage"), stage);
        EXPECT_GT(parts.at("bubble_ns"), 0) << "rank " << rank;
      } else {
        EXPECT_FALSE(of_rank.contains("stage"));
        EXPECT_EQ(parts.at("bubble_ns"), 0) << "a dedicated server never has work of its own";
        EXPECT_EQ(parts.at("sums_ns"), 0) << "it waits for stages, not in sums";
        EXPECT_GT(of_rank.at("total").at("idle_ns"), 0);
      }
    }
    for (const Json& tick : analysis.at("ticks")) {
      EXPECT_GT(tick.at("length_ns"), 0);
      EXPECT_GT(tick.at("ideal_ns"), 0);
    }
    return outcome;
  }

  /// The trace has the waits for rows of ranks that divide layers apart, and all of their bytes.
  static void expect_divided(const PipelineRun& what, const PipelineOutcome& outcome,
                             const Json& analysis) {
    EXPECT_EQ(analysis.at("unmatched_waits"), 0);
    EXPECT_EQ(analysis.at("tensor"), what.tensor);
    int64_t waited_ns = 0;
    for (int rank = 0; rank < what.ranks(); ++rank) {
      const Json& of_rank = analysis.at("ranks").at(rank);
      EXPECT_EQ(of_rank.at("tensor"), rank % what.tensor);
      expect_parts_add_up(of_rank);
      const int64_t ns = of_rank.at("total").at("parts").at("tensor_ns");
      EXPECT_TRUE(rank < what.workers() || ns == 0) << "a dedicated server has no rows";
      waited_ns += ns;
    }
    EXPECT_GT(waited_ns, 0);
    constexpr int kTraced = 2;  // steps
    const auto& sent = outcome.bytes_tensor;
    int64_t bytes = 0;
    std::set<std::string> names;
    for (const Json& exchange : analysis.at("exchanges")) {
      const std::string name = exchange.at("name");
      const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
      if (!has(" gather_rows for ") && !has(" sum_rows of ") && name != "loss rows") continue;
      bytes += exchange.at("bytes").get<int64_t>();
      names.insert(name);
    }
    EXPECT_EQ(bytes, kTraced * std::accumulate(sent.begin(), sent.end(), int64_t{0}));
    EXPECT_THAT(names, SizeIs(4 + 4 + 2 + 1)) << "of a layer's passes, the embedding, the loss";
  }
};

/// The text is printed: docs/trace.md shows it.
TEST_F(PipelineTrace, of_two_stages_under_ping_pong_has_the_ticks_of_its_plan) {
  LlamaConfig model = small_llama(2, ScalarType::kFloat32, 4);
  model.hidden_size = 128;
  model.intermediate_size = 384;
  model.head_dim = 32;
  PipelineRun what{.model = model, .layers = {2, 2}};
  for (int64_t nano = 0; nano < 8; ++nano)
    what.nano_batches.push_back({1024 + 128 * (nano % 3), 512 - 64 * (nano % 2), 200});
  expect_ticks(what, aligned_ticks(2, 4, /*trains=*/true));
  const std::string text = succeed({"trace", folder_ / "trace.json"}).out;
  EXPECT_THAT(text,
              HasSubstr("\n5 forward ticks, 5 backward ticks of 2 stages, 4 micro-batches\n"));
  EXPECT_THAT(text, HasSubstr("\n1 worker, stage 1 "));
  EXPECT_THAT(text, HasSubstr("idle = bubble + imbalance + exposed + sums + other\n"));
  fmt::print("{}", text);
}

TEST_F(PipelineTrace, tells_stages_replicas_and_servers_of_every_overlap_mode_apart) {
  PipelineRun what{.model = small_llama(2, ScalarType::kFloat64, 4),
                   .layers = {1, 2, 1},
                   .nano_batches = testing::uneven_lengths(3)};
  for (const OverlapName& overlap : kOverlaps) {
    what.options.overlap = overlap.overlap;
    const bool pairs = overlap.overlap == Overlap::kPingPong;
    what.replicas = pairs ? 2 : 1;
    what.dedicated = pairs ? 0 : 1;
    what.options.distributed_optimizer = pairs;
    expect_ticks(what, aligned_ticks(3, pairs ? 2 : 3, /*trains=*/true));
  }
}

TEST_F(PipelineTrace, of_ranks_that_divide_layers_has_waits_for_their_rows_apart) {
  for (const OverlapName& overlap : kOverlaps) {
    const bool pairs = overlap.overlap == Overlap::kPingPong;
    PipelineRun what{.model = small_llama(2, ScalarType::kFloat64, 2),
                     .layers = {1, 1},
                     .nano_batches = testing::uneven_lengths(3),
                     .replicas = pairs ? 2 : 1,
                     .dedicated = pairs ? 0 : 1,
                     .tensor = 2,
                     .options = {.overlap = overlap.overlap}};
    const PipelineOutcome outcome =
        expect_ticks(what, aligned_ticks(2, pairs ? 2 : 3, /*trains=*/true));
    expect_divided(what, outcome, analysed(folder_ / "trace.json"));
    EXPECT_THAT(succeed({"trace", folder_ / "trace.json"}).out,
                AllOf(HasSubstr("\n3 worker, stage "), HasSubstr(", tensor 1 "),
                      HasSubstr("idle = bubble + imbalance + exposed + tensor + sums + other\n")));
  }
}

TEST_F(PipelineTrace, of_one_stage_of_four_ranks_that_divide_layers_has_no_bubble) {
  PipelineRun what{.model = small_llama(4, ScalarType::kFloat64, 2),
                   .nano_batches = {{300, 41}, {2}},
                   .tensor = 4,
                   .trace = folder_ / "trace.json"};
  const PipelineOutcome outcome = run(what);
  const Json analysis = analysed(what.trace);
  expect_divided(what, outcome, analysis);
  EXPECT_FALSE(analysis.contains("ticks"));
  EXPECT_THAT(succeed({"trace", what.trace}).out,
              AllOf(HasSubstr("\n3 worker, tensor 3 "),
                    HasSubstr("idle = imbalance + exposed + tensor + sums + other\n")));
}

TEST_F(PipelineTrace, of_other_orders_has_ticks_of_both_passes) {
  const std::vector<Tick> ticks = one_forward_one_backward_ticks(3, 4);
  for (const Order order : {Order::kMixed, Order::kAtHome}) {
    const PipelineRun what{.model = small_llama(2, ScalarType::kFloat64, 3),
                           .layers = {1, 1, 1},
                           .nano_batches = testing::uneven_lengths(4),
                           .order = order,
                           .options = {.overlap = Overlap::kWithin}};
    expect_ticks(what, ticks);
    EXPECT_THAT(succeed({"trace", folder_ / "trace.json"}).out,
                HasSubstr("8 forward ticks, 9 backward ticks (5 are both) of 3 stages, 4 "
                          "micro-batches\n"));
  }
}

/// The events that a rank records of its program, of which no operation does anything.
std::vector<TraceEvent> recorded(const Program& program) {
  IdlePlayer player;
  OpTimes times;
  TraceRecorder recorder;
  recorder.set_step(2);
  const double begin_s = steady_seconds();
  play(program, player, &times, &recorder);
  recorder.add(
      {.kind = TraceKind::kStep, .name = "step 2", .begin_s = begin_s, .end_s = steady_seconds()});
  std::vector<TraceEvent> events = recorder.events();
  std::ranges::sort(events, {}, &TraceEvent::begin_s);
  return events;
}

TEST_F(PipelineTrace, of_any_grid_has_micro_batches_and_stages_less_one_ticks_each_way) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      const std::vector<std::vector<int64_t>> lengths(2 * micro_batches, {9, 5});
      // Weight gradients that fill other ticks change neither their passes nor who works in them.
      const PipelineStyle style{.layers = std::vector<int64_t>(stages, 1),
                                .lengths = lengths,
                                .outstanding = stages == 1 ? 0 : micro_batches % 3};
      std::vector<TraceRank> ranks;
      std::vector<std::string> texts;
      std::array<std::set<int>, 2> seen;  // [pass]
      for (const Program& program : testing::pipeline_programs(style)) {
        const std::vector<TraceEvent> events = recorded(program);
        for (const TraceEvent& event : events) {
          const bool forward = event.name.starts_with(pass_name(Pass::kForward));
          const bool has_waited = event.name.find(" weight_gradient") != std::string::npos;
          if (event.tick >= 0 && !has_waited) seen[forward ? 0 : 1].insert(event.tick);
        }
        ranks.push_back({.stage = program.stage.index});
        texts.push_back(chrome_events(static_cast<int>(texts.size()), ranks.back(), events));
      }
      for (const std::set<int>& of_pass : seen)
        ASSERT_THAT(of_pass, SizeIs(micro_batches + stages - 1));
      // The whole file is checked for these sizes only, because that takes longer.
      if (std::set{2, 3, 8}.count(stages) * std::set{1, 8, 16}.count(micro_batches) == 0) continue;
      write_file_atomically(folder_ / "idle.json", chrome_json("ping-pong", {}, ranks, texts));
      EXPECT_EQ(work_of(analysed(folder_ / "idle.json")),
                work_of(aligned_ticks(stages, micro_batches, /*trains=*/true)));
      EXPECT_THAT(
          succeed({"trace", folder_ / "idle.json"}).out,
          HasSubstr(fmt::format("\n{0} forward ticks, {0} backward ticks of {1} stages, {2} "
                                "micro-batch",
                                micro_batches + stages - 1, stages, micro_batches)));
    }
  }
}

}  // namespace
}  // namespace distca::parity
