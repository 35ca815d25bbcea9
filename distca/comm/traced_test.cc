#include "distca/comm/traced.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <latch>
#include <thread>

#include "distca/base/clock.h"
#include "distca/comm/clock_offset.h"
#include "distca/comm/collectives.h"
#include "distca/comm/ordered_sum.h"
#include "distca/comm/tags.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

class Traced : public ::testing::TestWithParam<Backend> {
 protected:
  /// Others wait by then, or nearly so.
  const double late_s_ = short_timeout_s(0.15);

  /// The events of two sums and a barrier by each rank, the last rank late to the second sum.
  std::vector<std::vector<TraceEvent>> sums_traced(int size) {
    std::vector<std::vector<TraceEvent>> events(size);
    std::latch others(size - 1);
    run_on(GetParam(), size, kPatient, [&](Communicator& group) {
      TraceRecorder recorder;
      TracedCommunicator traced(group, kTracedTags);
      traced.set_recorder(&recorder);
      std::array<double, 3> values = {1, 2, 3};
      ordered_sum(traced, values, "first sum");
      if (group.rank() < size - 1) others.count_down();
      if (group.rank() == size - 1) {
        others.wait();
        std::this_thread::sleep_for(std::chrono::duration<double>(late_s_));
      }
      ordered_sum(traced, values, "second sum");
      barrier(traced, "barrier");
      events[group.rank()] = recorder.events();
    });
    return events;
  }
};

const TraceEvent* find(const std::vector<TraceEvent>& events, TraceKind kind, uint32_t tag) {
  const auto found = std::ranges::find_if(
      events, [&](const TraceEvent& event) { return event.kind == kind && event.tag == tag; });
  return found == events.end() ? nullptr : &*found;
}

TEST_P(Traced, every_wait_has_the_posts_of_the_ranks_it_awaited) {
  for (int size : {2, 3}) {
    const auto events = sums_traced(size);
    for (int rank = 0; rank < size; ++rank) {
      int waits = 0;
      for (const TraceEvent& wait : events[rank]) {
        if (wait.kind != TraceKind::kWait) continue;
        ++waits;
        EXPECT_FALSE(wait.from.empty());
        for (int peer : wait.from) {
          const TraceEvent* issue = find(events[peer], TraceKind::kLaunch, wait.tag);
          ASSERT_NE(issue, nullptr) << wait.name;
          EXPECT_EQ(issue->name, wait.name);
          EXPECT_THAT(issue->to, ::testing::Contains(rank));
          EXPECT_LE(issue->begin_s, wait.end_s);
        }
      }
      EXPECT_GE(waits, 5);  // two a sum, one a barrier at least
    }
  }
}

TEST_P(Traced, a_wait_for_a_late_rank_shows_in_the_sum_it_was_late_to) {
  const auto events = sums_traced(2);
  double second_s = 0;
  for (const TraceEvent& event : events[0]) {
    if (event.kind != TraceKind::kWait) continue;
    if (event.name == "second sum") second_s += event.end_s - event.begin_s;
  }
  EXPECT_GE(second_s, late_s_ / 6);
}

TEST_P(Traced, without_a_recorder_nothing_is_recorded_and_sums_are_the_same) {
  run_on(GetParam(), 3, kPatient, [&](Communicator& group) {
    TraceRecorder recorder;
    TracedCommunicator traced(group, kTracedTags);
    std::array<double, 2> values = {1.5, 2};
    ordered_sum(traced, values, "sum");
    EXPECT_EQ(values, (std::array<double, 2>{4.5, 6}));
    traced.set_recorder(&recorder);
    ordered_sum(traced, values, "sum");
    const size_t recorded = recorder.events().size();
    EXPECT_GT(recorded, 0u);
    traced.set_recorder(nullptr);
    ordered_sum(traced, values, "sum");
    EXPECT_EQ(recorder.events().size(), recorded);
    EXPECT_EQ(values, (std::array<double, 2>{40.5, 54}));
  });
}

TEST_P(Traced, peers_of_a_smaller_group_are_named_as_the_caller_names_them) {
  run_on(GetParam(), 4, kPatient, [&](Communicator& all) {
    const std::vector<int> ranks = all.rank() % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3};
    const auto group = all.split(ranks);
    TraceRecorder recorder;
    TracedCommunicator traced(*group, kTracedTags, ranks);
    traced.set_recorder(&recorder);
    std::array<double, 1> values = {1};
    ordered_sum(traced, values, "sum");
    const int other = (all.rank() + 2) % 4;
    EXPECT_FALSE(recorder.events().empty());
    for (const TraceEvent& event : recorder.events()) {
      EXPECT_THAT(event.from, ::testing::Each(other));
      EXPECT_THAT(event.to, ::testing::Each(other));
    }
  });
}

TEST_P(Traced, texts_of_all_ranks_reach_rank_0_whole) {
  for (int size : {1, 2, 4}) {
    run_on(GetParam(), size, kPatient, [&](Communicator& group) {
      // Empty, a few bytes, exactly one piece, several.
      const auto text_of = [](int rank) {
        constexpr std::array<size_t, 4> kSizes = {3, 0, 1 << 20, (5 << 19) + 1};
        std::string text(kSizes[rank], ' ');
        for (size_t i = 0; i < text.size(); ++i)
          text[i] = static_cast<char>('a' + (i * 7 + rank) % 26);
        return text;
      };
      const auto texts = gather_texts(group, text_of(group.rank()), "test");
      ASSERT_EQ(static_cast<int>(texts.size()), group.rank() == 0 ? size : 0);
      for (size_t rank = 0; rank < texts.size(); ++rank)
        EXPECT_TRUE(texts[rank] == text_of(static_cast<int>(rank))) << rank;
    });
  }
}

constexpr double kDrift = 2e-4;  // rank 1's; clocks that anybody sells have a tenth of it

/// Returns what a rank's clock shows, in this test, when the real one shows `real_s`.
double shown_s(int rank, double real_s) { return real_s * (1 + rank * kDrift) + rank * 1000; }

TEST_P(Traced, clocks_that_are_off_are_put_right_to_within_what_is_said) {
  for (int size : {1, 2, 4}) {
    run_on(GetParam(), size, kPatient, [&](Communicator& group) {
      const auto clock = [&] { return shown_s(group.rank(), steady_seconds()); };
      const Stopwatch watch;
      const ClockReading before = read_clock_offset(group, clock);
      const double read_before_s = watch.seconds();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const Stopwatch watch_after;
      const ClockReading after = read_clock_offset(group, clock);
      const double read_s = read_before_s + watch_after.seconds();
      const AlignedClock aligned(before, after);
      EXPECT_EQ(aligned.uncertainty_s() == 0, group.rank() == 0);
      EXPECT_LT(aligned.uncertainty_s(), read_s) << "of many round trips the best counts";
      EXPECT_NEAR(aligned.drift(), 1 / (1 + group.rank() * kDrift) - 1,
                  (before.uncertainty_s + after.uncertainty_s) / (after.at_s - before.at_s) + 1e-9);
      const double begin = before.at_s, end = after.at_s;
      for (double mine : {begin, (begin + end) / 2, end}) {
        const double real = (mine - group.rank() * 1000) / (1 + group.rank() * kDrift);
        EXPECT_NEAR(aligned.on_rank_0(mine), real, aligned.uncertainty_s() + 1e-9);
      }
    });
  }
}

TEST(AlignedClock, noise_over_a_short_time_is_uncertainty_and_not_drift) {
  // 2 ms between readings, of which each took as long on a busy host.
  const ClockReading before{.at_s = 10, .offset_s = 5, .uncertainty_s = 0.004};
  for (const double gained : {-0.007, 0.007}) {
    const ClockReading after{.at_s = 10.002, .offset_s = 5 + gained, .uncertainty_s = 0.003};
    const AlignedClock aligned(before, after);
    EXPECT_DOUBLE_EQ(aligned.drift(), gained > 0 ? 1e-3 : -1e-3);
    EXPECT_NEAR(aligned.on_rank_0(after.at_s), after.at_s + after.offset_s, 0.007);
    EXPECT_NEAR(aligned.uncertainty_s(), 0.003 + 0.007 - 2e-6, 1e-12);
  }
  const ClockReading at_once{.at_s = 10, .offset_s = 5.5, .uncertainty_s = 0.003};
  EXPECT_EQ(AlignedClock(before, at_once).drift(), 0);
  EXPECT_DOUBLE_EQ(AlignedClock(before, at_once).uncertainty_s(), 0.503);
}

INSTANTIATE_TEST_SUITE_P(Each, Traced, ::testing::Values(Backend::kThreads, Backend::kGloo),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace distca
