#include "distca/sim/message_times.h"

#include <algorithm>

#include "distca/base/error.h"

namespace distca {
namespace {

template <size_t kLanes>
Lanes<kLanes> all_lanes(int64_t ps) {
  Lanes<kLanes> all;
  all.fill(ps);
  return all;
}

template <size_t kLanes>
Lanes<kLanes> sum(const Lanes<kLanes>& a, const Lanes<kLanes>& b) {
  Lanes<kLanes> both;
  for (size_t i = 0; i < kLanes; ++i) both[i] = a[i] + b[i];
  return both;
}

template <size_t kLanes>
Lanes<kLanes> less(const Lanes<kLanes>& a, const Lanes<kLanes>& b) {
  Lanes<kLanes> rest;
  for (size_t i = 0; i < kLanes; ++i) rest[i] = a[i] - b[i];
  return rest;
}

}  // namespace

template <size_t kLanes>
MessageTimes<kLanes>::MessageTimes(const StepLinks& links, std::span<const Wire> wires)
    : links_(links),
      in_order_(wires[0].in_order),
      ports_{LanePort<kLanes>(wires, &Wire::inside), LanePort<kLanes>(wires, &Wire::between)},
      begin_ps_(links.num_communications(), all_lanes<kLanes>(kUnknown)),
      states_(links.num_communications()),
      free_(in_order_ ? 0 : links.num_communications()),
      next_free_(in_order_ ? 0 : links.programs().size()) {
  DISTCA_CHECK_EQ(wires.size(), kLanes);
  for (const Wire& wire : wires)
    DISTCA_CHECK(wire.in_order == in_order_, "wires with and without in_order are played together");
  const Ps idle = all_lanes<kLanes>(kIdle);
  for (Free& next : next_free_) next = {{idle, idle}, {idle, idle}};
}

template <size_t kLanes>
void MessageTimes<kLanes>::start(int32_t communication, const Ps& at_ps) {
  State& own = state(communication);
  own.is_issued = true;
  own.received.at_ps = at_ps;
  if (in_order_) return;
  const auto number = static_cast<size_t>(communication);
  begin_ps_[number] = at_ps;
  const StepLinks::Communication& one = links_.communication(communication);
  const EachPort& sends = links_.port_bytes(one, /*is_sent=*/true);
  const EachPort& receives = links_.port_bytes(one, /*is_sent=*/false);
  Free& next = next_free_[static_cast<size_t>(one.program)];
  for (size_t of = 0; of < ports_.size(); ++of) {
    const Ps earliest = less(at_ps, ports_[of].burst_ps());
    free_[number].out_ps[of] = later(next.out_ps[of], earliest);
    free_[number].in_ps[of] = later(next.in_ps[of], earliest);
    next.out_ps[of] = sum(free_[number].out_ps[of], ports_[of].time_ps(sends[of]));
    next.in_ps[of] = sum(free_[number].in_ps[of], ports_[of].time_ps(receives[of]));
  }
}

/// Returns true once it is known from when on peers find a communication. With Wire::in_order, all
/// that the rank has started before is over then.
template <size_t kLanes>
bool MessageTimes<kLanes>::begins(int32_t communication) {
  if (is_begun(communication)) return true;
  State& own = state(communication);
  if (!own.is_issued) return false;
  Ps& begin = begin_ps_[static_cast<size_t>(communication)];
  const StepLinks::Communication& one = links_.communication(communication);
  if (one.before < 0) {
    begin = own.received.at_ps;
    return true;
  }
  DISTCA_CHECK(!own.is_asked, "rank {}: communications wait for each other in a circle at {}",
               links_.rank_of(static_cast<size_t>(one.program)),
               describe(links_.op_of(communication)));
  own.is_asked = true;
  const Over* const received = this->received(one.before);
  const Over* const sent = received != nullptr ? this->sent(one.before) : nullptr;
  own.is_asked = false;
  if (sent == nullptr) return false;
  begin = later(own.received.at_ps, later(received->at_ps, sent->at_ps));
  return true;
}

/// Returns false where the communication or a peer is not at it yet.
template <size_t kLanes>
bool MessageTimes<kLanes>::all_begun(int32_t communication, bool is_sent) {
  if (!begins(communication)) return false;
  const auto messages = links_.messages(links_.communication(communication), is_sent);
  uint32_t& waits = is_sent ? state(communication).waits_out : state(communication).waits_in;
  for (; waits < messages.size(); ++waits) {
    if (!begins(links_.peer_of(communication, messages[waits]))) return false;
  }
  return true;
}

/// Both sides have begun. A receiver's word that it is at it leaves behind what it has sent through
/// this port before.
template <size_t kLanes>
typename MessageTimes<kLanes>::Met MessageTimes<kLanes>::met(const Message& message, int32_t sender,
                                                             int32_t receiver) const {
  const auto out = static_cast<size_t>(sender), in = static_cast<size_t>(receiver);
  const auto of = static_cast<size_t>(message.port);
  const LanePort<kLanes>& port = ports_[of];
  Met met;
  Ps out_ps, notice_ps = begin_ps_[in];
  if (in_order_) {
    out_ps = less(begin_ps_[out], port.burst_ps());
    met.in_ps = less(begin_ps_[in], port.burst_ps());
  } else {
    out_ps = free_[out].out_ps[of];
    met.in_ps = free_[in].in_ps[of];
    notice_ps = later(notice_ps, free_[in].out_ps[of]);
  }
  met.own_ps = port.time_ps(message.bytes);
  met.ready_ps = later(begin_ps_[out], notice_ps);
  met.first_ps = later(out_ps, less(met.ready_ps, port.burst_ps()));
  met.left_ps = later(later(met.ready_ps, sum(out_ps, port.time_ps(message.shared_bytes))),
                      sum(met.first_ps, met.own_ps));
  return met;
}

template <size_t kLanes>
const typename MessageTimes<kLanes>::Over* MessageTimes<kLanes>::received(int32_t communication) {
  State& own = state(communication);
  if (own.is_received) return &own.received;
  if (!all_begun(communication, /*is_sent=*/false)) return nullptr;
  const Ps& begin = begin_ps_[static_cast<size_t>(communication)];
  Over over{.at_ps = begin, .last_peer_ps = begin[0]};
  const Ps idle = all_lanes<kLanes>(kIdle);
  EachPortPs free_ps{idle, idle};
  for (auto& lanes : arrivals_) {
    for (std::vector<Arrival>& arrivals : lanes) arrivals.clear();
  }
  for (const Message& message :
       links_.messages(links_.communication(communication), /*is_sent=*/false)) {
    const Met met = this->met(message, links_.peer_of(communication, message), communication);
    const auto of = static_cast<size_t>(message.port);
    over.last_peer_ps = std::max(over.last_peer_ps, met.ready_ps[0]);
    over.at_ps = later(over.at_ps, sum(met.left_ps, ports_[of].latency_ps()));
    free_ps[of] = met.in_ps;
    for (size_t lane = 0; lane < kLanes; ++lane)
      arrivals_[of][lane].push_back({met.first_ps[lane], met.own_ps[lane]});
  }
  drain(free_ps, over);
  own.is_received = true;
  own.received = over;
  return &own.received;
}

/// A port lets arrivals through in the order in which they began.
template <size_t kLanes>
void MessageTimes<kLanes>::drain(const EachPortPs& free_ps, Over& over) {
  for (size_t of = 0; of < ports_.size(); ++of) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      std::vector<Arrival>& arrivals = arrivals_[of][lane];
      if (arrivals.empty()) continue;
      if (!std::ranges::is_sorted(arrivals, {}, &Arrival::first_ps))
        std::ranges::sort(arrivals, {}, &Arrival::first_ps);
      int64_t free = free_ps[of][lane];
      for (const Arrival& one : arrivals) free = std::max(free, one.first_ps) + one.own_ps;
      over.at_ps[lane] = std::max(over.at_ps[lane], free + ports_[of].latency_ps()[lane]);
    }
  }
}

template <size_t kLanes>
const typename MessageTimes<kLanes>::Over* MessageTimes<kLanes>::sent(int32_t communication) {
  State& own = state(communication);
  if (own.is_sent) return &own.sent;
  if (!all_begun(communication, /*is_sent=*/true)) return nullptr;
  const Ps& begin = begin_ps_[static_cast<size_t>(communication)];
  Over over{.at_ps = begin, .last_peer_ps = begin[0]};
  for (const Message& message :
       links_.messages(links_.communication(communication), /*is_sent=*/true)) {
    const Met met = this->met(message, communication, links_.peer_of(communication, message));
    const Ps& latency = ports_[static_cast<size_t>(message.port)].latency_ps();
    over.last_peer_ps = std::max(over.last_peer_ps, met.ready_ps[0]);
    const Ps taken = sum(later(met.first_ps, met.in_ps), met.own_ps);
    over.at_ps = later(over.at_ps, sum(later(met.left_ps, taken), latency));
  }
  own.is_sent = true;
  own.sent = over;
  return &own.sent;
}

template class MessageTimes<1>;
template class MessageTimes<3>;
template class MessageTimes<6>;

}  // namespace distca
