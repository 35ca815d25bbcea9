#include "bench/tick_spans.h"

#include <map>

#include "distca/base/error.h"

namespace distca::bench {
namespace {

/// The tick in which the rank's stage plays this pass of a nano-batch.
int tick_of(const PipelineParts& parts, int stage, int nano_batch, Pass pass) {
  const std::vector<Tick>& ticks = parts.ticks();
  const int micro_batch = nano_batch / parts.request().slots;
  for (size_t tick = 0; tick < ticks.size(); ++tick) {
    if (ticks[tick].stages[stage] == TickStage{micro_batch, pass}) return static_cast<int>(tick);
  }
  DISTCA_CHECK(false, "nano-batch {} is in no tick", nano_batch);
}

/// The share of the rank's tasks in an exchange, by pairs, whose rows are its own.
double own_share(const PipelineParts& parts, int rank, const Program& program, const Op& op) {
  const AttentionExchange& exchange = *program.exchanges[op.exchange];
  const Plan& plan = parts.plan(op.exchange, parts.grid().stage(rank));
  int64_t own = 0, all = 0;
  for (const ServerTask& task : exchange.rows.tasks) {
    const Task& planned = plan.tasks[task.task];
    const int64_t pairs = plan.shape.mask.of_task(planned.mask).pairs(planned.q, planned.kv);
    all += pairs;
    if (task.q.buffer == 0) own += pairs;
  }
  return all > 0 ? static_cast<double>(own) / static_cast<double>(all) : 0;
}

}  // namespace

std::vector<TickSpan> tick_spans(const PacedStep& step, int rank, const Program& program,
                                 const std::vector<TraceEvent>& events) {
  const PipelineParts& parts = step.parts();
  const int stage = parts.grid().stage(rank);
  std::map<int, TickSpan> spans;  // by tick
  auto event = events.begin();
  for (const Op& op : program.ops) {
    if (op.stream != Stream::kCompute) continue;
    while (event != events.end() && event->kind != TraceKind::kCompute) ++event;
    DISTCA_CHECK(event != events.end(), "{} was not recorded", describe(op));
    const double seconds = event->end_s - event->begin_s;
    const bool is_attention = op.kind == OpKind::kCoreAttention;
    if (op.nano_batch >= 0 || is_attention) {
      const bool has_waited =
          op.kind == OpKind::kWeightGradient;  // its backward was in an earlier tick
      const int tick = has_waited           ? op.tick
                       : op.nano_batch >= 0 ? tick_of(parts, stage, op.nano_batch, op.pass)
                                            : parts.order().exchanges[op.exchange].tick;
      TickSpan& span =
          spans
              .try_emplace(tick, TickSpan{.tick = tick, .begin_s = event->begin_s, .pass = op.pass})
              .first->second;
      span.end_s = event->end_s;
      if (op.nano_batch >= 0 && !has_waited)
        span.micro_batch = op.nano_batch / parts.request().slots;
      const double own = is_attention ? own_share(parts, rank, program, op) : 0;
      (is_attention ? span.own_s : span.linear_s) += is_attention ? own * seconds : seconds;
      if (is_attention) span.served_s += (1 - own) * seconds;
    }
    ++event;
  }
  std::vector<TickSpan> result;
  for (const auto& [tick, span] : spans) result.push_back(span);
  return result;
}

Json json_of(const TickSpan& span) {
  return {{"tick", span.tick},
          {"begin_s", span.begin_s},
          {"end_s", span.end_s},
          {"pass", pass_name(span.pass)},
          {"micro_batch", span.micro_batch},
          {"linear_s", span.linear_s},
          {"own_s", span.own_s},
          {"served_s", span.served_s}};
}

}  // namespace distca::bench
