#include "distca/trace/chrome.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "distca/base/json.h"

namespace distca {
namespace {

using ::testing::ElementsAre;

/// From `begin` to `end` microseconds, in step 1.
TraceEvent event(TraceKind kind, const char* name, int begin, int end) {
  return {.kind = kind,
          .name = name,
          .begin_s = begin * 1000 / 1e9,
          .end_s = end * 1000 / 1e9,
          .step = 1};
}

Json written(const std::vector<TraceRank>& ranks, const std::vector<std::string>& events) {
  return parse_json(chrome_json("within", {"cpu-avx2"}, ranks, events), "written");
}

std::vector<Json> events_of_phase(const std::string& phase, const std::vector<std::string>& texts) {
  std::vector<Json> found;
  const Json file = written({}, texts);
  for (const Json& json : file["traceEvents"]) {
    if (json["ph"] == phase) found.push_back(json);
  }
  return found;
}

TEST(ChromeTrace, a_counter_has_a_line_for_each_value) {
  const auto lines = events_of_phase(
      "C", {chrome_counter(3, {.name = "memory", .unit = "bytes", .values = {{0, 7}, {5e-6, 9}}})});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], Json({{"ph", "C"},
                            {"name", "memory"},
                            {"pid", 3},
                            {"tid", 0},
                            {"ts", 5.0},
                            {"args", {{"bytes", 9}}}}));
}

TEST(ChromeTrace, an_event_says_all_that_was_recorded_of_it) {
  TraceEvent made = event(TraceKind::kLaunch, "forward \"x\" dispatch", 48, 50);
  made.layer = 3;
  made.micro_batch = 0;
  made.nano_batch = 1;
  made.tick = 5;
  made.tag = 7;
  made.from = {0};
  made.to = {0, 2};
  made.bytes = 1000;
  made.received_bytes = 2000;
  made.flops = 7e3;
  const Json expected = {{"ph", "X"},
                         {"name", made.name},
                         {"cat", "launch"},
                         {"pid", 1},
                         {"tid", 0},
                         {"ts", 48.0},
                         {"dur", 2.0},
                         {"args",
                          {{"step", 1},
                           {"layer", 3},
                           {"micro_batch", 0},
                           {"nano_batch", 1},
                           {"tick", 5},
                           {"tag", 7},
                           {"from", {0}},
                           {"to", {0, 2}},
                           {"bytes", 1000},
                           {"received_bytes", 2000},
                           {"flops", 7e3}}}};
  EXPECT_THAT(events_of_phase("X", {chrome_events(1, {.server = true}, std::vector{made})}),
              ElementsAre(expected));
  const TraceEvent plain = event(TraceKind::kStep, "step 1", 0, 1);
  EXPECT_EQ(
      events_of_phase("X", {chrome_events(0, {.server = true}, std::vector{plain})})[0]["args"],
      Json({{"step", 1}}));
}

TEST(ChromeTrace, the_file_says_what_each_rank_is) {
  const Json file = written({{},
                             {.server = true,
                              .clock_offset_s = -0.125,
                              .clock_drift = 1e-6,
                              .clock_uncertainty_s = 2e-6}},
                            {chrome_events(0, {}, {}), chrome_events(1, {.server = true}, {})});
  const Json& other = file["otherData"];
  EXPECT_EQ(other["program"], "distca");
  EXPECT_EQ(other["overlap"], "within");
  EXPECT_EQ(other["kernel"], "cpu-avx2");
  EXPECT_FALSE(other.contains("kernel_passed_over"));
  EXPECT_EQ(other["ranks"][0]["role"], "worker");
  EXPECT_EQ(other["ranks"][1], Json({{"role", "server"},
                                     {"clock_offset_s", -0.125},
                                     {"clock_drift", 1e-6},
                                     {"clock_uncertainty_s", 2e-6}}));
}

TEST(ChromeTrace, the_file_says_why_a_kernel_was_passed_over) {
  const TraceKernel kernel{.name = "aten-cuda", .passed_over = "there is no folder"};
  const Json file = parse_json(chrome_json("none", kernel, {}, {}), "written");
  EXPECT_EQ(file["otherData"]["kernel"], "aten-cuda");
  EXPECT_EQ(file["otherData"]["kernel_passed_over"], "there is no folder");
}

TEST(ChromeTrace, a_prediction_says_by_what_and_of_which_ranks_it_is) {
  const TraceRank rank{.tensor = 0, .number = 8};
  const TracePrediction predicted{.machine = "h200", .num_ranks = 16, .alike = 8};
  const Json file = parse_json(
      fmt::format("{}{}{}", chrome_head("none", {}, std::vector{rank}, &predicted),
                  chrome_events(8, rank, std::vector{event(TraceKind::kStep, "step 1", 0, 1)}),
                  kChromeTail),
      "written");
  const Json& other = file["otherData"];
  EXPECT_EQ(other["predicted"], Json({{"machine", "h200"}, {"num_ranks", 16}, {"alike", 8}}));
  EXPECT_FALSE(other.contains("kernel"));
  EXPECT_EQ(other["ranks"][0]["rank"], 8);
  EXPECT_EQ(file["traceEvents"][0]["args"]["name"], "rank 8 (worker, tensor 0)");
  const Json measured = written({{}}, {});
  EXPECT_FALSE(measured["otherData"].contains("predicted"));
  EXPECT_FALSE(measured["otherData"]["ranks"][0].contains("rank"));
}

TEST(ChromeTrace, every_nanosecond_survives) {
  std::vector<TraceEvent> events;
  std::vector<int64_t> times;
  // Up to a month, where a double of microseconds still has the nanosecond.
  for (int64_t ns = 1; ns < 2'600'000'000'000'000; ns = ns * 3 + 7) {
    events.push_back(event(TraceKind::kCompute, "x", 0, 0));
    events.back().begin_s = static_cast<double>(ns) / 1e9;
    events.back().end_s = static_cast<double>(ns + ns % 1001) / 1e9;
    times.push_back(ns);
  }
  const std::vector<Json> read = events_of_phase("X", {chrome_events(0, {}, events)});
  ASSERT_EQ(read.size(), times.size());
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(std::llround(read[i]["ts"].get<double>() * 1e3), times[i]);
    EXPECT_EQ(std::llround(read[i]["dur"].get<double>() * 1e3), times[i] % 1001);
  }
}

TEST(ChromeTrace, a_rank_is_a_process_named_by_what_it_does) {
  std::vector<std::string> names;
  for (const Json& json :
       events_of_phase("M", {chrome_events(0, {}, {}), chrome_events(1, {.server = true}, {})})) {
    if (json["name"] == "process_name") names.push_back(json["args"]["name"]);
  }
  EXPECT_THAT(names, ElementsAre("rank 0 (worker)", "rank 1 (server)"));
}

TEST(ChromeTrace, stages_are_named_in_a_pipeline_alone) {
  const std::vector<TraceRank> ranks = {{}, {.stage = 0}, {.server = true}};
  const Json file = written(ranks, {chrome_events(1, ranks[1], {})});
  const Json& listed = file["otherData"]["ranks"];
  EXPECT_FALSE(listed[0].contains("stage"));
  EXPECT_EQ(listed[1]["stage"], 0);
  EXPECT_FALSE(listed[2].contains("stage"));
  EXPECT_EQ(file["traceEvents"][0]["args"]["name"], "rank 1 (worker of stage 0)");
}

TEST(ChromeTrace, places_in_a_server_are_named_where_ranks_divide_layers) {
  const std::vector<TraceRank> ranks = {
      {.stage = 1, .tensor = 0}, {.tensor = 1}, {.server = true, .tensor = 0}};
  std::vector<std::string> texts, names;
  for (int rank = 0; rank < 3; ++rank) texts.push_back(chrome_events(rank, ranks[rank], {}));
  for (const Json& json : events_of_phase("M", texts)) {
    if (json["name"] == "process_name") names.push_back(json["args"]["name"]);
  }
  EXPECT_THAT(names, ElementsAre("rank 0 (worker of stage 1, tensor 0)",
                                 "rank 1 (worker, tensor 1)", "rank 2 (server, tensor 0)"));
  const Json file = written(ranks, texts), undivided = written({{}}, {});
  const Json& listed = file["otherData"]["ranks"];
  EXPECT_EQ(listed[0]["tensor"], 0);
  EXPECT_EQ(listed[1]["tensor"], 1);
  EXPECT_EQ(listed[2]["tensor"], 0);
  EXPECT_FALSE(undivided["otherData"]["ranks"][0].contains("tensor"));
}

TEST(ChromeTrace, messages_under_way_at_the_same_time_have_threads_of_their_own) {
  const std::vector<TraceEvent> events = {event(TraceKind::kFlight, "a", 0, 10),
                                          event(TraceKind::kFlight, "b", 5, 20),
                                          event(TraceKind::kFlight, "c", 10, 15)};
  std::vector<int> threads;
  for (const Json& json : events_of_phase("X", {chrome_events(0, {}, events)})) {
    threads.push_back(json["tid"]);
  }
  EXPECT_THAT(threads, ElementsAre(1, 2, 1));
}

TEST(ChromeTrace, an_arrow_leads_from_each_issue_to_the_end_of_the_wait_for_it) {
  std::vector<TraceEvent> waits = {event(TraceKind::kWait, "dispatch", 20, 60),
                                   event(TraceKind::kWait, "sum", 70, 95)};
  std::vector<TraceEvent> issues = {event(TraceKind::kLaunch, "dispatch", 48, 50),
                                    event(TraceKind::kLaunch, "sum", 79, 80)};
  for (uint32_t i = 0; i < 2; ++i) {
    waits[i].tag = issues[i].tag = 7 + i;
    waits[i].from = {1};
    issues[i].to = {0};
  }
  const std::vector<std::string> texts = {chrome_events(0, {}, waits),
                                          chrome_events(1, {}, issues)};
  const std::vector<Json> begins = events_of_phase("s", texts), ends = events_of_phase("f", texts);
  ASSERT_EQ(begins.size(), 2u);  // the exchange and the sum
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(begins[0]["pid"], 1);
  EXPECT_EQ(begins[0]["ts"], 48.0);
  EXPECT_EQ(ends[0]["pid"], 0);
  EXPECT_EQ(ends[0]["ts"], 59.999);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(begins[i]["id"], ends[i]["id"]);
  EXPECT_NE(begins[0]["id"], begins[1]["id"]);
}

}  // namespace
}  // namespace distca
