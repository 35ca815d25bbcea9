#include "distca/trace/analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "distca/base/error.h"
#include "distca/trace/trace_testing.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using testing::event;
using testing::exchange_event;
using testing::two_rank_trace;

constexpr int64_t kUs = 1000;

int64_t part_us(const RankStep& step, StepPart part) { return step.parts.of(part) / kUs; }

TEST(TraceAnalysis, each_moment_counts_as_what_the_innermost_event_says) {
  const TraceAnalysis analysis = analyse(two_rank_trace(), "example");
  const RankStep& step = analysis.ranks[0][0];
  EXPECT_EQ(part_us(step, StepPart::kCompute),
            7 + 35 - 25);  // core attention, the sum around its wait
  EXPECT_EQ(part_us(step, StepPart::kCopy), 2);
  EXPECT_EQ(part_us(step, StepPart::kIssue), 2);
  EXPECT_EQ(part_us(step, StepPart::kGap), 1 + 4 + 1 + 2 + 3);
  EXPECT_EQ(part_us(step, StepPart::kOther), 3);
}

TEST(TraceAnalysis, a_wait_is_imbalance_until_the_last_awaited_rank_had_posted_then_exposed) {
  const TraceAnalysis analysis = analyse(two_rank_trace(), "example");
  const RankStep& step = analysis.ranks[0][0];
  EXPECT_EQ(part_us(step, StepPart::kExposed), 10);           // 50 to 60
  EXPECT_EQ(part_us(step, StepPart::kSum), 15);               // 80 to 95
  EXPECT_EQ(part_us(step, StepPart::kImbalance), 30 + 10);    // 20 to 50, 70 to 80
  EXPECT_THAT(step.waited_for_ns, ElementsAre(0, 40 * kUs));  // rank 1 came last both times
  EXPECT_EQ(analysis.exchanges[0].name, "gradient sum");      // most exposed
  EXPECT_EQ(analysis.exchanges[1].name, "forward dispatch");
  EXPECT_EQ(analysis.exchanges[1].layer, 3);
  EXPECT_EQ(analysis.exchanges[1].nano_batch, 1);
  EXPECT_EQ(analysis.exchanges[1].exposed_ns, 10 * kUs);
  EXPECT_EQ(analysis.exchanges[1].imbalance_ns, 30 * kUs);
  EXPECT_EQ(analysis.exchanges[1].bytes, 2000);  // of both ranks
}

TEST(TraceAnalysis, of_several_awaited_ranks_the_last_to_post_counts) {
  Trace trace = two_rank_trace();
  trace.ranks.push_back(trace.ranks[1]);
  for (TraceEvent& late : trace.ranks[2].events) {
    if (late.tag == 7) late.end_s = 55e-6;
  }
  for (TraceEvent& wait : trace.ranks[0].events) {
    if (wait.tag == 7 && wait.kind == TraceKind::kWait) wait.from = {1, 2};
  }
  const RankStep step = analyse(trace, "example").ranks[0][0];
  EXPECT_EQ(part_us(step, StepPart::kExposed), 5);
  EXPECT_THAT(step.waited_for_ns, ElementsAre(0, 10 * kUs, 35 * kUs));
}

TEST(TraceAnalysis, a_wait_for_sends_is_measured_by_the_receiving_rank) {
  Trace trace = two_rank_trace();
  for (TraceEvent& wait : trace.ranks[0].events) {
    if (wait.tag == 7 && wait.kind == TraceKind::kWait) std::swap(wait.from, wait.to);
  }
  EXPECT_EQ(part_us(analyse(trace, "example").ranks[0][0], StepPart::kExposed), 10);
}

TEST(TraceAnalysis, a_wait_whose_post_is_missing_is_exposed_and_counted) {
  Trace trace = two_rank_trace();
  EXPECT_EQ(analyse(trace, "example").unmatched_waits, 0);
  std::erase_if(trace.ranks[1].events, [](const TraceEvent& gone) { return gone.tag == 7; });
  const TraceAnalysis analysis = analyse(trace, "example");
  EXPECT_EQ(analysis.unmatched_waits, 1);
  EXPECT_EQ(part_us(analysis.ranks[0][0], StepPart::kExposed), 40);
}

TEST(TraceAnalysis, hidden_is_time_under_way_without_the_waits_each_moment_once) {
  Trace trace = two_rank_trace();
  EXPECT_EQ(analyse(trace, "example").ranks[0][0].hidden_ns, 8 * kUs);  // 12 to 20
  // Under way from 15 to 75 as well: until the wait at 20, and after it from 60 to the sum's at 70.
  trace.ranks[0].events.push_back(exchange_event(TraceKind::kFlight, 15, 75, {1}));
  EXPECT_EQ(analyse(trace, "example").ranks[0][0].hidden_ns, (8 + 10) * kUs);
}

TEST(TraceAnalysis, operations_are_summed_over_layers_without_what_lies_inside_them) {
  const TraceAnalysis analysis = analyse(two_rank_trace(), "example");
  ASSERT_EQ(analysis.operations.size(), 3u);
  EXPECT_EQ(analysis.operations[0].name, "forward \"pre\"");
  const OperationTimes& sum = analysis.operations[1];
  EXPECT_EQ(sum.name, "grad_reduce");
  EXPECT_THAT(sum.rank_ns, ElementsAre(10 * kUs, 20 * kUs));
  EXPECT_EQ(sum.count, 2);
  EXPECT_EQ(analysis.operations[2].name, "forward core_attention");
  EXPECT_EQ(analysis.operations[2].flops, 7e3);
}

TEST(TraceAnalysis, what_a_nano_batch_without_a_partner_waits_for_is_its_own) {
  // Nano-batches 0 and 1 send under each other's attention, 2 has an empty partner.
  Trace trace;
  trace.ranks.resize(2);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<TraceEvent>& events = trace.ranks[rank].events;
    events.push_back(event(TraceKind::kStep, "step", 0, 100));
    const auto add = [&](int nano_batch, int issued, int wait, int end) {
      for (TraceEvent made : {exchange_event(TraceKind::kLaunch, issued, issued + 1, {1 - rank}),
                              exchange_event(TraceKind::kWait, wait, end, {1 - rank})}) {
        made.name = fmt::format("forward layer 3 dispatch of nano-batch {}", nano_batch);
        made.nano_batch = nano_batch;
        made.tag = 10 + nano_batch;
        events.push_back(made);
      }
    };
    add(0, 1, 20, 21);
    add(1, 2, 40, 41);
    add(2, 50, 51, 90);
  }
  const std::vector<ExchangeTimes> exchanges = analyse(trace, "example").exchanges;
  ASSERT_EQ(exchanges.size(), 3u);
  EXPECT_EQ(exchanges[0].nano_batch, 2);
  EXPECT_EQ(exchanges[0].exposed_ns, 2 * 39 * kUs);
  for (const size_t hidden : {1, 2}) {
    EXPECT_EQ(exchanges[hidden].name, "forward dispatch");
    EXPECT_EQ(exchanges[hidden].layer, 3);
    EXPECT_EQ(exchanges[hidden].exposed_ns, 2 * kUs);
    EXPECT_EQ(exchanges[hidden].bytes, 2000);
  }
}

TEST(TraceAnalysis, bytes_are_those_posted) {
  const TraceAnalysis analysis = analyse(two_rank_trace(), "example");
  EXPECT_EQ(analysis.totals[0].bytes, 1000);
  EXPECT_EQ(analysis.totals[0].received_bytes, 2000);
}

/// Events at random, some nested, some across others' ends, some beyond the step.
Trace random_trace(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  Trace trace;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<TraceEvent>& events = trace.ranks.emplace_back().events;
    for (int step = 1; step <= 2; ++step) {
      const int begin = 1000 * step + below(50), end = begin + 500 + below(100);
      events.push_back(event(TraceKind::kStep, "step", begin, end));
      events.back().step = step;
      for (int i = 0; i < 40; ++i) {
        const auto kind = static_cast<TraceKind>(1 + below(5));
        const int from = 1000 * step + below(650);
        events.push_back(exchange_event(kind, from, from + below(60), {below(3)}));
        events.back().step = step;
        events.back().tag = below(8);
      }
    }
  }
  return trace;
}

TEST(TraceAnalysis, the_parts_add_up_to_the_step_exactly_whatever_the_events) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Trace trace = random_trace(seed);
    const TraceAnalysis analysis = analyse(trace, "random");
    for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
      int64_t all = 0;
      ASSERT_EQ(analysis.ranks[rank].size(), 2u);
      for (const TraceEvent& step : trace.ranks[rank].events) {
        if (step.kind != TraceKind::kStep) continue;
        const RankStep& parts = analysis.ranks[rank][step.step - 1];
        const int64_t length = nanoseconds(step.end_s) - nanoseconds(step.begin_s);
        EXPECT_EQ(parts.parts.total(), length);
        EXPECT_LE(parts.hidden_ns + parts.parts.idle(), length);
        EXPECT_GE(*std::ranges::min_element(parts.parts.ns), 0);
        EXPECT_GE(parts.hidden_ns, 0);
        all += length;
      }
      EXPECT_EQ(analysis.totals[rank].parts.total(), all);
    }
  }
}

TEST(TraceAnalysis, ranks_with_other_steps_are_refused) {
  Trace trace = two_rank_trace();
  trace.ranks[1].events[0].step = 2;
  EXPECT_THROW(analyse(trace, "example"), Error);
  trace.ranks[1].events.clear();
  EXPECT_THROW(analyse(trace, "example"), Error);
  trace.ranks.clear();
  EXPECT_THROW(analyse(trace, "example"), Error);
}

TEST(TraceAnalysis, names_of_operations_leave_layer_and_nano_batch_out) {
  TraceEvent named = exchange_event(TraceKind::kWait, 0, 1, {});
  EXPECT_EQ(operation_name(named), "forward dispatch");
  named.name = "grad_reduce";
  EXPECT_EQ(operation_name(named), "grad_reduce");
}

}  // namespace
}  // namespace distca
