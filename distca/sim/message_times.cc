#include "distca/sim/message_times.h"

#include <algorithm>

#include "distca/base/error.h"

namespace distca {

std::vector<int> ranks_of(std::span<const Program> programs) {
  const bool are_firsts =
      std::ranges::all_of(programs, [](const Program& one) { return one.stage.tensor.index == 0; });
  std::vector<int> ranks;
  for (size_t i = 0; i < programs.size(); ++i)
    ranks.push_back(static_cast<int>(i) * (are_firsts ? programs[i].stage.tensor.size : 1));
  return ranks;
}

MessageTimes::MessageTimes(std::span<const Program> programs, const Wire& wire)
    : programs_(programs),
      wire_(wire),
      burst_ps_{wire.inside.time_ps(wire.inside.burst_bytes),
                wire.between.time_ps(wire.between.burst_bytes)},
      ranks_(programs.size()) {
  DISTCA_CHECK_GE(wire.ranks_per_node, 1);
  const std::vector<int> numbers = ranks_of(programs);
  for (size_t i = 0; i < programs.size(); ++i) {
    ranks_[i].rank = numbers[i];
    program_of_.emplace(numbers[i], i);
    ranks_[i].number_of_op.assign(programs[i].ops.size(), -1);
  }
  std::unordered_map<uint32_t, size_t> tags;  // in the order in which they are found
  for (size_t i = 0; i < programs.size(); ++i) {
    for (size_t at = 0; at < programs[i].ops.size(); ++at) {
      const Op& op = programs[i].ops[at];
      if (programs[i].sends(op).empty() && programs[i].receives(op).empty()) continue;
      add_communication(i, at, tags.emplace(op.tag, tags.size()).first->second);
    }
  }
  for (Rank& rank : ranks_) {
    rank.number_of_tag.assign(tags.size(), -1);
    for (size_t number = 0; number < rank.communications.size(); ++number)
      rank.number_of_tag[rank.communications[number].tag] = static_cast<int32_t>(number);
  }
}

void MessageTimes::add_communication(size_t program, size_t op, size_t tag) {
  Rank& rank = ranks_[program];
  const Op& of = programs_[program].ops[op];
  rank.number_of_op[op] = static_cast<int32_t>(rank.ops.size());
  rank.ops.push_back(static_cast<int32_t>(op));
  rank.communications.push_back({.op = &of,
                                 .program = program,
                                 .tag = tag,
                                 .sends = shares(program, of, programs_[program].sends(of)),
                                 .receives = shares(program, of, programs_[program].receives(of))});
}

void MessageTimes::start(size_t program, int32_t op, int64_t at_ps) {
  Rank& rank = ranks_[program];
  Communication& one = at(program, op);
  one.issued_ps = at_ps;
  if (wire_.in_order) return;
  one.begin_ps = at_ps;
  for (const PortOf of : {kInside, kBetween}) {
    one.out_ps[of] = std::max(rank.out_free_ps[of], at_ps - burst_ps_[of]);
    one.in_ps[of] = std::max(rank.in_free_ps[of], at_ps - burst_ps_[of]);
    rank.out_free_ps[of] = one.out_ps[of] + one.sends->total_ps[of];
    rank.in_free_ps[of] = one.in_ps[of] + one.receives->total_ps[of];
  }
}

std::optional<MessageTimes::Over> MessageTimes::received(size_t program, int32_t op) {
  return received(at(program, op));
}

std::optional<MessageTimes::Over> MessageTimes::sent(size_t program, int32_t op) {
  return sent(at(program, op));
}

/// The number by which messages of a communication name the rank of a program.
int MessageTimes::name_of(size_t program, const Op& op) const {
  const TensorPlace& place = programs_[program].stage.tensor;
  if (is_of_tensor(op.kind)) return place.index;
  return op.bucket >= 0 ? ranks_[program].rank : ranks_[program].rank / place.size;
}

MessageTimes::PortOf MessageTimes::port_between(int rank, int peer) const {
  return rank / wire_.ranks_per_node == peer / wire_.ranks_per_node ? kInside : kBetween;
}

MessageTimes::Communication& MessageTimes::at(size_t program, int32_t op) {
  Rank& rank = ranks_[program];
  const int32_t number = rank.number_of_op.at(static_cast<size_t>(op));
  DISTCA_CHECK(number >= 0, "operation {} has no messages", op);
  return rank.communications[static_cast<size_t>(number)];
}

/// A message without what others share of its port. Partners of a first rank do the same as that,
/// at the same time.
MessageTimes::Shares::Message MessageTimes::message_of(size_t program, const Op& op,
                                                       const PeerMessage& message) const {
  const int peer = programs_[program].rank_of(op, message.peer);
  const auto own = program_of_.find(peer);
  const auto played = own != program_of_.end()
                          ? own
                          : program_of_.find(peer - peer % programs_[program].stage.tensor.size);
  DISTCA_CHECK(played != program_of_.end(), "rank {}: {} with rank {}, which has no program",
               ranks_[program].rank, describe(op), peer);
  const PortOf of = port_between(ranks_[program].rank, peer);
  return {.program = played->second,
          .is_played = own != program_of_.end(),
          .port = of,
          .bytes = message.bytes,
          .own_ps = port(of).time_ps(message.bytes),
          .end_ps = 0};
}

const MessageTimes::Shares* MessageTimes::shares(size_t program, const Op& op,
                                                 const MessageList& list) {
  const auto [entry, is_new] = shares_.try_emplace({program, &list});
  Shares& shares = entry->second;
  if (!is_new) return &shares;
  shares.list = &list;
  std::array<std::vector<size_t>, 2> through;  // [PortOf] messages
  for (const PeerMessage& message : list.messages) {
    shares.messages.push_back(message_of(program, op, message));
    through[shares.messages.back().port].push_back(shares.messages.size() - 1);
  }
  for (const PortOf of : {kInside, kBetween}) {
    std::vector<size_t>& messages = through[of];
    std::ranges::sort(messages, {}, [&](size_t m) { return shares.messages[m].bytes; });
    int64_t left = 0;  // bytes of the smaller ones, which have left
    for (size_t k = 0; k < messages.size(); ++k) {
      Shares::Message& message = shares.messages[messages[k]];
      // And as much of each larger one as of this.
      message.end_ps =
          port(of).time_ps(left + message.bytes * static_cast<int64_t>(messages.size() - k));
      left += message.bytes;
    }
    shares.total_ps[of] = port(of).time_ps(left);
  }
  return &shares;
}

/// From when on peers find a communication. With Wire::in_order, all that the rank has started
/// before is over then.
std::optional<int64_t> MessageTimes::begun(Communication& one) {
  if (one.begin_ps || one.issued_ps < 0) return one.begin_ps;
  Rank& rank = ranks_[one.program];
  const auto number = static_cast<size_t>(&one - rank.communications.data());
  if (number == 0) return one.begin_ps = one.issued_ps;
  DISTCA_CHECK(!one.is_asked, "rank {}: communications wait for each other in a circle at {}",
               rank.rank, describe(*one.op));
  one.is_asked = true;
  Communication& before = rank.communications[number - 1];
  const std::optional<Over> received = this->received(before);
  const std::optional<Over> sent = received ? this->sent(before) : std::nullopt;
  one.is_asked = false;
  if (!sent) return std::nullopt;
  return one.begin_ps = std::max({one.issued_ps, received->at_ps, sent->at_ps});
}

/// The communication of a message's peer.
MessageTimes::Communication& MessageTimes::of_peer(Communication& own,
                                                   const Shares::Message& message) {
  if (message.program == own.program) return own;
  Rank& other = ranks_[message.program];
  const int32_t number = other.number_of_tag[own.tag];
  DISTCA_CHECK(number >= 0, "rank {}: {} with rank {}, which has none", ranks_[own.program].rank,
               describe(*own.op), other.rank);
  return other.communications[static_cast<size_t>(number)];
}

/// Shares::Message::end_ps of a message that this rank receives. A partner of a first rank sends
/// its peers as much as that rank receives from its own.
int64_t MessageTimes::end_ps(const Communication& own, size_t message,
                             const Communication& sender) const {
  const Shares::Message& mine = own.receives->messages[message];
  if (!mine.is_played) return mine.end_ps;
  const MessageList& sends = *sender.sends->list;
  const PeerMessage* const there = sends.with(name_of(own.program, *own.op));
  DISTCA_CHECK(there != nullptr && there->bytes == mine.bytes,
               "ranks {} and {} have different messages in {}", ranks_[own.program].rank,
               ranks_[sender.program].rank, describe(*own.op));
  return sender.sends->messages[static_cast<size_t>(there - sends.messages.data())].end_ps;
}

/// When a receiver's word that it is at it leaves: behind what it has sent through this port
/// before.
int64_t MessageTimes::notice_ps(const Communication& receives, PortOf of) const {
  return wire_.in_order ? *receives.begin_ps : std::max(*receives.begin_ps, receives.out_ps[of]);
}

std::optional<MessageTimes::Met> MessageTimes::met(Communication& own, size_t message,
                                                   bool is_sent) {
  const Shares::Message& mine = (is_sent ? own.sends : own.receives)->messages[message];
  Communication& its = of_peer(own, mine);
  if (!begun(its)) return std::nullopt;
  const Communication &out = is_sent ? own : its, &in = is_sent ? its : own;
  const PortOf of = mine.port;
  const auto free_ps = [&](const Communication& one, const EachPort& ports) {
    return wire_.in_order ? *one.begin_ps - burst_ps_[of] : ports[of];
  };
  const int64_t out_ps = free_ps(out, out.out_ps);
  Met met{.port = of,
          .own_ps = mine.own_ps,
          .end_ps = is_sent ? mine.end_ps : end_ps(own, message, its),
          .ready_ps = std::max(*out.begin_ps, notice_ps(in, of)),
          .in_ps = free_ps(in, in.in_ps),
          .first_ps = 0,
          .left_ps = 0};
  met.first_ps = std::max(out_ps, met.ready_ps - burst_ps_[of]);
  met.left_ps = std::max({met.ready_ps, out_ps + met.end_ps, met.first_ps + met.own_ps});
  return met;
}

/// Fills met_. Returns false where a peer is not at it yet.
bool MessageTimes::meet_all(Communication& own, bool is_sent) {
  if (!begun(own)) return false;
  const size_t count = (is_sent ? own.sends : own.receives)->messages.size();
  size_t& waits = is_sent ? own.waits_out : own.waits_in;
  if (waits < count && !met(own, waits, is_sent)) return false;
  std::vector<Met> all;  // a peer's begin may need met_ itself
  all.swap(met_);
  all.clear();
  for (size_t m = 0; m < count; ++m) {
    const std::optional<Met> one = met(own, m, is_sent);
    if (!one) {
      waits = m;
      return false;
    }
    all.push_back(*one);
  }
  met_.swap(all);
  return true;
}

/// When a receiver's ports have let the messages in met_ through, in the order in which they began.
int64_t MessageTimes::drained_ps() {
  std::ranges::sort(met_, {}, &Met::first_ps);
  EachPort free_ps{kIdle, kIdle};
  int64_t last = 0;
  for (const Met& message : met_) {
    int64_t& free = free_ps[message.port];
    free = std::max({free, message.in_ps, message.first_ps}) + message.own_ps;
    last = std::max(last, std::max(free, message.ready_ps) + port(message.port).latency_ps);
  }
  return last;
}

std::optional<MessageTimes::Over> MessageTimes::received(Communication& one) {
  if (one.received) return one.received;
  if (!meet_all(one, /*is_sent=*/false)) return std::nullopt;
  Over over{.at_ps = *one.begin_ps, .last_peer_ps = *one.begin_ps};
  for (const Met& message : met_) {
    over.last_peer_ps = std::max(over.last_peer_ps, message.ready_ps);
    over.at_ps = std::max(over.at_ps, message.left_ps + port(message.port).latency_ps);
  }
  over.at_ps = std::max(over.at_ps, drained_ps());
  return one.received = over;
}

std::optional<MessageTimes::Over> MessageTimes::sent(Communication& one) {
  if (one.sent) return one.sent;
  if (!meet_all(one, /*is_sent=*/true)) return std::nullopt;
  Over over{.at_ps = *one.begin_ps, .last_peer_ps = *one.begin_ps};
  for (const Met& message : met_) {
    over.last_peer_ps = std::max(over.last_peer_ps, message.ready_ps);
    const int64_t taken = std::max(message.first_ps, message.in_ps) + message.own_ps;
    over.at_ps =
        std::max(over.at_ps, std::max(message.left_ps, taken) + port(message.port).latency_ps);
  }
  return one.sent = over;
}

}  // namespace distca
