#include "bench/tick_spans.h"

#include <gtest/gtest.h>

namespace distca::bench {
namespace {

/// Events as the rank would record them if it never waited.
std::vector<TraceEvent> events_of(const PacedStep& step, int rank, const Program& program) {
  std::vector<TraceEvent> events;
  double now = 0;
  for (const Op& op : program.ops) {
    TraceEvent event{.kind = op.stream == Stream::kCompute ? TraceKind::kCompute : TraceKind::kWait,
                     .begin_s = now};
    now += step.seconds(rank, op);
    event.end_s = now;
    events.push_back(event);
  }
  return events;
}

TEST(TickSpans, hold_all_work_of_a_rank_in_the_ticks_of_its_stage) {
  const PacedSetting setting{.stages = 2, .micro_batches = 2, .layers = 2};
  for (const PipelineArm arm : {PipelineArm::kHomePairs, PipelineArm::kWholeEven}) {
    const PacedStep step(setting, arm);
    double all = 0, served = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const Program program = step.program(rank);
      for (const TickSpan& span : tick_spans(step, rank, program, events_of(step, rank, program))) {
        const TickStage& of = step.parts().ticks()[span.tick].stages[rank];
        EXPECT_EQ(span.micro_batch, of.micro_batch);
        EXPECT_EQ(span.pass, of.pass);
        if (span.micro_batch < 0) {
          EXPECT_EQ(span.linear_s + span.own_s, 0);
          EXPECT_GT(span.served_s, 0);
        } else {
          EXPECT_GT(span.linear_s, 0);
        }
        // Its slots begin and end one after the other, so a tick's span reaches into the next
        // one's.
        EXPECT_LE(span.linear_s + span.own_s + span.served_s, span.end_s - span.begin_s + 1e-9);
        all += span.linear_s + span.own_s + span.served_s;
        served += span.served_s;
      }
    }
    EXPECT_NEAR(all, 2 * step.busy_seconds(), 1e-9);
    EXPECT_EQ(served > 0, arm == PipelineArm::kWholeEven);
  }
}

}  // namespace
}  // namespace distca::bench
