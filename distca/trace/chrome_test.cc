#include "distca/trace/chrome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/json.h"
#include "distca/trace/trace_testing.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::event;
using ::testing::HasSubstr;
using testing::two_rank_trace;

/// The refusal of a file with this text.
std::string refusal(std::string_view text) {
  try {
    trace_from_chrome_json(text, "run.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "taken";
}

/// The example's file with the first `old_part` replaced.
std::string changed(const std::string& old_part, const std::string& new_part) {
  std::string text = chrome_json(two_rank_trace());
  const size_t at = text.find(old_part);
  EXPECT_NE(at, std::string::npos) << old_part;
  return text.replace(at, old_part.size(), new_part);
}

std::vector<Json> events_of_phase(const Trace& trace, const std::string& phase) {
  std::vector<Json> found;
  const Json file = parse_json(chrome_json(trace), "written");
  for (const Json& json : file["traceEvents"]) {
    if (json["ph"] == phase) found.push_back(json);
  }
  return found;
}

TEST(ChromeTrace, what_was_written_is_read_back_exactly) {
  const Trace trace = two_rank_trace();
  EXPECT_EQ(trace_from_chrome_json(chrome_json(trace), "run.json"), trace);
}

TEST(ChromeTrace, every_nanosecond_survives) {
  Trace trace = two_rank_trace();
  trace.ranks.resize(1);
  std::vector<TraceEvent>& events = trace.ranks[0].events;
  events.clear();
  // Up to a month, where a double of microseconds still has the nanosecond.
  for (int64_t ns = 1; ns < 2'600'000'000'000'000; ns = ns * 3 + 7) {
    events.push_back(event(TraceKind::kCompute, "x", 0, 0));
    events.back().begin_s = static_cast<double>(ns) / 1e9;
    events.back().end_s = static_cast<double>(ns + ns % 1001) / 1e9;
  }
  EXPECT_EQ(trace_from_chrome_json(chrome_json(trace), "run.json"), trace);
}

TEST(ChromeTrace, a_rank_is_a_process_named_by_what_it_does) {
  std::vector<std::string> names;
  for (const Json& json : events_of_phase(two_rank_trace(), "M")) {
    if (json["name"] == "process_name") names.push_back(json["args"]["name"]);
  }
  EXPECT_THAT(names, ElementsAre("rank 0 (worker)", "rank 1 (server)"));
}

TEST(ChromeTrace, messages_under_way_at_the_same_time_have_threads_of_their_own) {
  Trace trace = two_rank_trace();
  trace.ranks[0].events = {event(TraceKind::kFlight, "a", 0, 10),
                           event(TraceKind::kFlight, "b", 5, 20),
                           event(TraceKind::kFlight, "c", 10, 15)};
  std::vector<int> threads;
  for (const Json& json : events_of_phase(trace, "X")) {
    if (json["pid"] == 0) threads.push_back(json["tid"]);
  }
  EXPECT_THAT(threads, ElementsAre(1, 2, 1));
}

TEST(ChromeTrace, an_arrow_leads_from_each_post_to_the_end_of_the_wait_for_it) {
  const std::vector<Json> begins = events_of_phase(two_rank_trace(), "s");
  const std::vector<Json> ends = events_of_phase(two_rank_trace(), "f");
  ASSERT_EQ(begins.size(), 2u);  // the exchange and the sum
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(begins[0]["pid"], 1);
  EXPECT_EQ(begins[0]["ts"], 48.0);
  EXPECT_EQ(ends[0]["pid"], 0);
  EXPECT_EQ(ends[0]["ts"], 59.999);
  EXPECT_EQ(begins[0]["id"], ends[0]["id"]);
  EXPECT_NE(begins[0]["id"], begins[1]["id"]);
}

TEST(ChromeTrace, what_is_no_json_is_refused_with_its_place) {
  EXPECT_THAT(refusal("not json"), AllOf(HasSubstr("run.json"), HasSubstr("is not JSON")));
  const std::string text = chrome_json(two_rank_trace());
  EXPECT_THAT(refusal(std::string_view(text).substr(0, text.size() / 2)), HasSubstr("not JSON"));
}

TEST(ChromeTrace, traces_of_other_programs_are_refused) {
  EXPECT_THAT(refusal("{\"traceEvents\":[]}"), HasSubstr("no \"otherData\""));
  EXPECT_THAT(refusal("[]"), AllOf(HasSubstr("distca train --trace"), HasSubstr("an object")));
  EXPECT_THAT(refusal(changed("\"program\":\"distca\"", "\"program\":\"else\"")),
              HasSubstr("another program"));
  EXPECT_THAT(refusal(changed("\"overlap\"", "\"plan\"")), HasSubstr("no \"overlap\""));
}

TEST(ChromeTrace, a_damaged_event_is_named_with_what_is_wrong) {
  EXPECT_THAT(refusal(changed("\"cat\":\"compute\"", "\"cat\":\"sleep\"")),
              AllOf(HasSubstr("run.json"), HasSubstr("traceEvents["), HasSubstr("\"sleep\"")));
  EXPECT_THAT(refusal(changed("\"dur\":100.000", "\"dur\":-1")), HasSubstr("\"dur\" is -1"));
  EXPECT_THAT(refusal(changed("\"ts\":0.000", "\"ts\":null")), HasSubstr("\"ts\" is null"));
  EXPECT_THAT(refusal(changed("\"step\":1", "\"step\":1.5")), HasSubstr("\"step\" is 1.5"));
  EXPECT_THAT(refusal(changed("\"step\":1", "\"steps\":1")), HasSubstr("no \"step\""));
  EXPECT_THAT(refusal(changed("\"ph\":\"X\"", "\"ph\":\"B\"")), HasSubstr("\"B\""));
  EXPECT_THAT(refusal(changed("\"from\":[1]", "\"from\":[-1]")), HasSubstr("\"from\" is -1"));
  EXPECT_THAT(refusal(changed("\"pid\":0,\"tid\":0,\"ts\"", "\"pid\":9,\"tid\":0,\"ts\"")),
              AllOf(HasSubstr("rank 9"), HasSubstr("2 ranks")));
  EXPECT_THAT(refusal(changed("\"traceEvents\":[", "\"traceEvents\":[3,")),
              HasSubstr("\"traceEvents\""));
}

}  // namespace
}  // namespace distca
