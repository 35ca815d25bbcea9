#include "distca/sim/message_times.h"

#include <algorithm>

#include "distca/base/error.h"

namespace distca {

MessageTimes::MessageTimes(const StepLinks& links, const Wire& wire)
    : links_(links),
      wire_(wire),
      times_{PortTime(wire.inside), PortTime(wire.between)},
      burst_ps_{wire.inside.time_ps(wire.inside.burst_bytes),
                wire.between.time_ps(wire.between.burst_bytes)},
      begin_ps_(links.num_communications(), kUnknown),
      states_(links.num_communications()),
      free_(wire.in_order ? 0 : links.num_communications()),
      next_free_(links.programs().size(), Free{{kIdle, kIdle}, {kIdle, kIdle}}) {}

void MessageTimes::start(int32_t communication, int64_t at_ps) {
  state(communication).issued_ps = at_ps;
  if (wire_.in_order) return;
  const auto number = static_cast<size_t>(communication);
  begin_ps_[number] = at_ps;
  const StepLinks::Communication& one = links_.communication(communication);
  const EachPort& sends = links_.port_bytes(one, /*is_sent=*/true);
  const EachPort& receives = links_.port_bytes(one, /*is_sent=*/false);
  Free& next = next_free_[static_cast<size_t>(one.program)];
  for (size_t of = 0; of < times_.size(); ++of) {
    free_[number].out_ps[of] = std::max(next.out_ps[of], at_ps - burst_ps_[of]);
    free_[number].in_ps[of] = std::max(next.in_ps[of], at_ps - burst_ps_[of]);
    next.out_ps[of] = free_[number].out_ps[of] + times_[of](sends[of]);
    next.in_ps[of] = free_[number].in_ps[of] + times_[of](receives[of]);
  }
}

/// From when on peers find a communication, if that is known. With Wire::in_order, all that the
/// rank has started before is over then.
int64_t MessageTimes::begun(int32_t communication) {
  int64_t& begin = begin_ps_[static_cast<size_t>(communication)];
  if (begin != kUnknown) return begin;
  State& own = state(communication);
  if (own.issued_ps == kUnknown) return kUnknown;
  const StepLinks::Communication& one = links_.communication(communication);
  if (one.before < 0) return begin = own.issued_ps;
  DISTCA_CHECK(!own.is_asked, "rank {}: communications wait for each other in a circle at {}",
               links_.rank_of(static_cast<size_t>(one.program)),
               describe(links_.op_of(communication)));
  own.is_asked = true;
  const std::optional<Over> received = this->received(one.before);
  const std::optional<Over> sent = received ? this->sent(one.before) : std::nullopt;
  own.is_asked = false;
  if (!sent) return kUnknown;
  return begin = std::max({own.issued_ps, received->at_ps, sent->at_ps});
}

/// Returns false where the communication or a peer is not at it yet.
bool MessageTimes::all_begun(int32_t communication, bool is_sent) {
  if (begun(communication) == kUnknown) return false;
  const auto messages = links_.messages(links_.communication(communication), is_sent);
  uint32_t& waits = is_sent ? state(communication).waits_out : state(communication).waits_in;
  for (; waits < messages.size(); ++waits) {
    if (begun(links_.peer_of(communication, messages[waits])) == kUnknown) return false;
  }
  return true;
}

/// Both sides have begun. A receiver's word that it is at it leaves behind what it has sent through
/// this port before.
MessageTimes::Met MessageTimes::met(const Message& message, int32_t sender,
                                    int32_t receiver) const {
  const auto out = static_cast<size_t>(sender), in = static_cast<size_t>(receiver);
  const auto of = static_cast<size_t>(message.port);
  const int64_t burst = burst_ps_[of];
  int64_t out_ps = begin_ps_[out] - burst, notice_ps = begin_ps_[in];
  Met met{.own_ps = times_[of](message.bytes), .in_ps = begin_ps_[in] - burst};
  if (!wire_.in_order) {
    out_ps = free_[out].out_ps[of];
    met.in_ps = free_[in].in_ps[of];
    notice_ps = std::max(notice_ps, free_[in].out_ps[of]);
  }
  met.ready_ps = std::max(begin_ps_[out], notice_ps);
  met.first_ps = std::max(out_ps, met.ready_ps - burst);
  met.left_ps = std::max(
      {met.ready_ps, out_ps + times_[of](message.shared_bytes), met.first_ps + met.own_ps});
  return met;
}

std::optional<MessageTimes::Over> MessageTimes::received(int32_t communication) {
  State& own = state(communication);
  if (own.received.at_ps != kUnknown) return own.received;
  if (!all_begun(communication, /*is_sent=*/false)) return std::nullopt;
  const int64_t begin = begin_ps_[static_cast<size_t>(communication)];
  Over over{.at_ps = begin, .last_peer_ps = begin};
  EachPort free_ps{kIdle, kIdle};
  for (std::vector<Arrival>& arrivals : arrivals_) arrivals.clear();
  for (const Message& message :
       links_.messages(links_.communication(communication), /*is_sent=*/false)) {
    const Met met = this->met(message, links_.peer_of(communication, message), communication);
    over.last_peer_ps = std::max(over.last_peer_ps, met.ready_ps);
    over.at_ps = std::max(over.at_ps, met.left_ps + port(message.port).latency_ps);
    const auto of = static_cast<size_t>(message.port);
    free_ps[of] = met.in_ps;
    arrivals_[of].push_back({met.first_ps, met.own_ps});
  }
  // A port lets them through in the order in which they began.
  for (const PortOf of : {PortOf::kInside, PortOf::kBetween}) {
    std::vector<Arrival>& arrivals = arrivals_[static_cast<size_t>(of)];
    if (arrivals.empty()) continue;
    if (!std::ranges::is_sorted(arrivals, {}, &Arrival::first_ps))
      std::ranges::sort(arrivals, {}, &Arrival::first_ps);
    int64_t free = free_ps[static_cast<size_t>(of)];
    for (const Arrival& one : arrivals) free = std::max(free, one.first_ps) + one.own_ps;
    over.at_ps = std::max(over.at_ps, free + port(of).latency_ps);
  }
  return own.received = over;
}

std::optional<MessageTimes::Over> MessageTimes::sent(int32_t communication) {
  State& own = state(communication);
  if (own.sent.at_ps != kUnknown) return own.sent;
  if (!all_begun(communication, /*is_sent=*/true)) return std::nullopt;
  const int64_t begin = begin_ps_[static_cast<size_t>(communication)];
  Over over{.at_ps = begin, .last_peer_ps = begin};
  for (const Message& message :
       links_.messages(links_.communication(communication), /*is_sent=*/true)) {
    const Met met = this->met(message, communication, links_.peer_of(communication, message));
    over.last_peer_ps = std::max(over.last_peer_ps, met.ready_ps);
    const int64_t taken = std::max(met.first_ps, met.in_ps) + met.own_ps;
    over.at_ps = std::max(over.at_ps, std::max(met.left_ps, taken) + port(message.port).latency_ps);
  }
  return own.sent = over;
}

}  // namespace distca
