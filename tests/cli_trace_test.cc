// `distca train --trace` on real ranks, and `distca trace` of what it wrote.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "distca/trace/analysis.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CliTraceTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    prefix_ = make_data_set(folder_);
  }
  fs::path file() const { return folder_ / "traces" / "run.json"; }

  /// Trains with --trace and returns what was written.
  Trace traced(std::vector<std::string> more) {
    more.insert(more.end(), {"--trace", file()});
    const Outcome outcome = run_distca(train_arguments(prefix_, folder_ / "run", more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("distca trace " + file().string()));
    return read_trace(file());
  }

  fs::path prefix_;
};

const TraceEvent* post_of(const TraceRank& rank, const TraceEvent& wait) {
  const auto found = std::ranges::find_if(rank.events, [&](const TraceEvent& event) {
    return event.kind == TraceKind::kLaunch && event.step == wait.step && event.tag == wait.tag;
  });
  return found == rank.events.end() ? nullptr : &*found;
}

void expect_every_message_on_both_sides(const Trace& trace) {
  for (int rank = 0; rank < static_cast<int>(trace.ranks.size()); ++rank) {
    for (const TraceEvent& event : trace.ranks[rank].events) {
      if (event.kind != TraceKind::kLaunch && event.kind != TraceKind::kWait) continue;
      const bool issues = event.kind == TraceKind::kLaunch;
      const auto here = [&](const std::vector<int>& ranks) { EXPECT_THAT(ranks, Contains(rank)); };
      for (int peer : event.to) {
        const TraceEvent* there = post_of(trace.ranks.at(peer), event);
        ASSERT_NE(there, nullptr) << event.name << " of rank " << rank << " to " << peer;
        EXPECT_EQ(there->name, event.name);
        if (issues) here(there->from);
      }
      for (int peer : event.from) {
        const TraceEvent* there = post_of(trace.ranks.at(peer), event);
        ASSERT_NE(there, nullptr) << event.name << " of rank " << rank << " from " << peer;
        here(there->to);
        EXPECT_LE(there->begin_s, event.kind == TraceKind::kWait ? event.end_s : HUGE_VAL);
      }
    }
  }
}

void expect_events_within_their_steps(const Trace& trace) {
  for (const TraceRank& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) {
      const auto step = std::ranges::find_if(rank.events, [&](const TraceEvent& other) {
        return other.kind == TraceKind::kStep && other.step == event.step;
      });
      ASSERT_NE(step, rank.events.end());
      EXPECT_GE(event.begin_s, step->begin_s) << event.name;
      EXPECT_LE(event.end_s, step->end_s) << event.name;
    }
  }
}

/// Perfetto draws events of one thread only where they lie within or beside each other.
void expect_compute_events_nest(const Trace& trace) {
  for (const TraceRank& rank : trace.ranks) {
    std::vector<double> ends;
    for (const TraceEvent& event : rank.events) {
      if (event.kind == TraceKind::kFlight) continue;
      while (!ends.empty() && ends.back() <= event.begin_s) ends.pop_back();
      if (!ends.empty()) {
        EXPECT_LE(event.end_s, ends.back()) << event.name;
      }
      ends.push_back(event.end_s);
    }
  }
}

void expect_parts_add_up(const Trace& trace, std::vector<int64_t> steps) {
  const TraceAnalysis analysis = analyse(trace, "run");
  EXPECT_EQ(analysis.unmatched_waits, 0);
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    ASSERT_EQ(analysis.ranks[rank].size(), steps.size());
    size_t next = 0;
    for (const TraceEvent& event : trace.ranks[rank].events) {
      if (event.kind != TraceKind::kStep) continue;
      EXPECT_EQ(event.step, steps[next]);
      EXPECT_EQ(analysis.ranks[rank][next++].parts.total(),
                nanoseconds(event.end_s) - nanoseconds(event.begin_s));
    }
  }
}

TEST_F(CliTraceTest, a_run_of_two_workers_leaves_a_trace_whose_parts_add_up) {
  const Trace trace = traced({"--workers", "2"});
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_EQ(trace.overlap, "ping-pong");
  expect_every_message_on_both_sides(trace);
  expect_events_within_their_steps(trace);
  expect_compute_events_nest(trace);
  expect_parts_add_up(trace, {2, 3, 4});
  for (const TraceRank& rank : trace.ranks) {
    EXPECT_FALSE(rank.server);
    EXPECT_EQ(rank.clock_uncertainty_s, 0);  // one machine, one clock
    std::set<std::string> names;
    for (const TraceEvent& event : rank.events) names.insert(operation_name(event));
    EXPECT_THAT(names,
                AllOf(Contains("plan"), Contains("plan hash"), Contains("forward core_attention"),
                      Contains("backward pre_attention"), Contains("gradient sum"),
                      Contains("loss sum"), Contains("optimizer")));
  }
}

TEST_F(CliTraceTest, servers_and_schedules_are_traced_alike) {
  for (const char* overlap : {"none", "within"}) {
    const Trace trace = traced({"--workers", "2", "servers.dedicated=1", "train.trace_steps=1",
                                "train.trace_first_step=3", "train.overwrite=true",
                                std::string("train.overlap=") + overlap});
    ASSERT_EQ(trace.ranks.size(), 3u);
    EXPECT_TRUE(trace.ranks[2].server);
    EXPECT_EQ(trace.overlap, overlap);
    expect_every_message_on_both_sides(trace);
    expect_events_within_their_steps(trace);
    expect_parts_add_up(trace, {3});
    const TraceAnalysis analysis = analyse(trace, "run");
    EXPECT_GT(analysis.totals[2].bytes, 0);
    EXPECT_GT(analysis.totals[2].parts.of(StepPart::kCompute), 0);
  }
}

TEST_F(CliTraceTest, a_traced_run_learns_the_same_as_one_that_is_not) {
  const auto losses = [&](const std::vector<std::string>& more) {
    const fs::path run = folder_ / (more.empty() ? "plain" : "traced");
    std::vector<std::string> arguments = {"--workers", "2", "comm.backend=threads"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(run_distca(train_arguments(prefix_, run, arguments)).exit_code, 0);
    std::vector<double> losses;
    for (const Json& line : read_json_lines(run / "metrics.jsonl")) losses.push_back(line["loss"]);
    return losses;
  };
  const std::vector<double> plain = losses({});
  EXPECT_EQ(plain.size(), 6u);
  EXPECT_EQ(losses({"--trace", file()}), plain);
}

TEST_F(CliTraceTest, the_table_and_its_json_say_where_the_time_went) {
  traced({"--workers", "2", "comm.backend=threads"});
  const Outcome table = run_distca({"trace", file()});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* part :
       {"2 ranks, steps 2 to 4, overlap ping-pong", "0 worker", "1 worker", "Lost: ", "imbalance",
        "exposed", "copies", "launch: issues", "computes longest", "forward core_attention",
        "GFLOP/s", "of nano-batch 1", "nano-batch 0"})
    EXPECT_THAT(table.out, HasSubstr(part));
  const Json json = parse_json(run_distca({"trace", "--json", file()}).out, "output");
  ASSERT_EQ(json["ranks"].size(), 2u);
  double lost_ns = 0;
  for (const Json& rank : json["ranks"]) {
    const Json& total = rank["total"];
    int64_t sum = 0;
    for (const Json& part : total["parts"]) sum += part.get<int64_t>();
    EXPECT_EQ(sum, total["step_ns"].get<int64_t>());
    EXPECT_EQ(rank["steps"].size(), 3u);
    lost_ns += static_cast<double>(sum - total["parts"]["compute_ns"].get<int64_t>()) / 2 / 3;
  }
  EXPECT_NEAR(json["lost_ms"].get<double>(), lost_ns * 1e-6, 1e-9 * lost_ns);
}

TEST_F(CliTraceTest, a_trace_that_cannot_be_written_later_costs_nothing_but_the_trace) {
  // The weights stand where the trace's folder would be.
  const fs::path weights = folder_ / "run" / "model.safetensors";
  const Outcome outcome = run_distca(train_arguments(
      prefix_, folder_ / "run", {"--workers", "2", "--trace", weights / "trace.json"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr(weights.string() + ": cannot create"));
  EXPECT_EQ(read_json_lines(folder_ / "run" / "metrics.jsonl").size(), 6u);
  EXPECT_TRUE(fs::is_regular_file(weights));
}

}  // namespace
}  // namespace distca::testing
