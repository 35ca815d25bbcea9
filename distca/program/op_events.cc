#include "distca/program/op_events.h"

namespace distca {
namespace {

std::vector<int> peers(const Program& program, const Op& op, const MessageList& list) {
  std::vector<int> ranks;
  ranks.reserve(list.messages.size());
  for (const PeerMessage& message : list.messages)
    ranks.push_back(program.rank_of(op, message.peer));
  return ranks;
}

TraceEvent event(const Program& program, const Op& op, TraceKind kind, const TraceSpan& span) {
  const MessageList &sends = program.sends(op), &receives = program.receives(op);
  return {.kind = kind,
          .name = describe(op),
          .begin_s = span.begin_s,
          .end_s = span.end_s,
          .layer = op.layer,
          .micro_batch = op.micro_batch,
          .nano_batch = op.nano_batch,
          .tick = op.tick,
          .tag = op.tag,
          .from = peers(program, op, receives),
          .to = peers(program, op, sends),
          .bytes = sends.bytes,
          .received_bytes = receives.bytes,
          .flops = op.flops};
}

}  // namespace

bool lands(OpKind kind) {
  return kind == OpKind::kCombine || kind == OpKind::kP2p || kind == OpKind::kSumRows;
}

TraceEvent compute_event(const Program& program, const Op& op, const TraceSpan& play) {
  return event(program, op, TraceKind::kCompute, play);
}

std::vector<TraceEvent> start_events(const Program& program, const Op& op, const TraceSpan& pack,
                                     const TraceSpan& issue) {
  const bool sends = !program.sends(op).empty();
  std::vector<TraceEvent> events;
  if (sends) events.push_back(event(program, op, TraceKind::kCopy, pack));
  if (sends || !program.receives(op).empty())
    events.push_back(event(program, op, TraceKind::kLaunch, issue));
  return events;
}

std::vector<TraceEvent> receive_events(const Program& program, const Op& op, const TraceSpan& wait,
                                       const TraceSpan& flight, const TraceSpan& land) {
  if (program.receives(op).empty()) return {};
  std::vector<TraceEvent> events = {event(program, op, TraceKind::kWait, wait),
                                    event(program, op, TraceKind::kFlight, flight)};
  events[0].to.clear();
  if (lands(op.kind)) events.push_back(event(program, op, TraceKind::kCopy, land));
  return events;
}

std::vector<TraceEvent> send_events(const Program& program, const Op& op, const TraceSpan& wait,
                                    const TraceSpan& flight) {
  if (program.sends(op).empty()) return {};
  std::vector<TraceEvent> events = {event(program, op, TraceKind::kWait, wait)};
  events[0].from.clear();
  if (program.receives(op).empty())
    events.push_back(event(program, op, TraceKind::kFlight, flight));
  return events;
}

}  // namespace distca
