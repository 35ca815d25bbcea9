#include "distca/sim/step_links.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/parallel.h"

namespace distca {

std::vector<int> ranks_of(std::span<const Program> programs) {
  const bool are_firsts =
      std::ranges::all_of(programs, [](const Program& one) { return one.stage.tensor.index == 0; });
  std::vector<int> ranks;
  for (size_t i = 0; i < programs.size(); ++i)
    ranks.push_back(static_cast<int>(i) * (are_firsts ? programs[i].stage.tensor.size : 1));
  return ranks;
}

StepLinks::StepLinks(std::span<const Program> programs, int ranks_per_node, int threads)
    : programs_(programs), ranks_per_node_(ranks_per_node), of_(programs.size()) {
  DISTCA_CHECK_GE(ranks_per_node, 1);
  const std::vector<int> ranks = ranks_of(programs);
  if (!ranks.empty()) program_of_.assign(static_cast<size_t>(ranks.back()) + 1, -1);
  for (size_t i = 0; i < ranks.size(); ++i) {
    of_[i].rank = ranks[i];
    program_of_[static_cast<size_t>(ranks[i])] = static_cast<int32_t>(i);
  }
  std::vector<std::vector<uint32_t>> tags(programs.size());
  for_each_in_parallel(programs.size(), threads,
                       [&](size_t i) { tags[i] = find_communications(i); });
  number_communications(std::move(tags));
  for_each_in_parallel(programs.size(), threads, [&](size_t i) {
    add_lists(i);
    add_waits(i);
  });
  const size_t parts = std::min(programs.size(), static_cast<size_t>(std::max(1, threads)));
  for_each_in_parallel(parts, threads, [&](size_t i) { link(i, parts); });
}

/// Returns the tags of the program's communications, in order.
std::vector<uint32_t> StepLinks::find_communications(size_t program) {
  const Program& of = programs_[program];
  OfProgram& own = of_[program];
  own.places.resize(of.ops.size() + 1);
  std::vector<uint32_t> tags;
  for (size_t at = 0; at < of.ops.size(); ++at) {
    const Op& op = of.ops[at];
    own.places[at].computes = op.stream == Stream::kCompute;
    if (of.sends(op).empty() && of.receives(op).empty()) continue;
    own.communications.push_back(static_cast<int32_t>(at));  // its number follows
    tags.push_back(op.tag);
  }
  return tags;
}

/// [program] Their communications' tags, which are numbered in the order in which they are found.
void StepLinks::number_communications(std::vector<std::vector<uint32_t>> tags) {
  std::unordered_map<uint32_t, uint32_t> places;
  std::vector<int32_t> next;  // [tag] how many it has, then the number of the next one
  size_t all = 0;
  for (std::vector<uint32_t>& of_program : tags) {
    all += of_program.size();
    for (uint32_t& tag : of_program) {
      tag = places.emplace(tag, static_cast<uint32_t>(places.size())).first->second;
      if (tag == next.size()) next.push_back(0);
      ++next[tag];
    }
  }
  std::exclusive_scan(next.begin(), next.end(), next.begin(), 0);
  communications_.resize(all);
  number_of_.assign(next.size() * programs_.size(), -1);
  for (size_t program = 0; program < tags.size(); ++program) {
    int32_t before = -1;
    for (size_t i = 0; i < tags[program].size(); ++i) {
      const uint32_t tag = tags[program][i];
      const int32_t number = next[tag]++, op = of_[program].communications[i];
      communications_[static_cast<size_t>(number)] = {.program = static_cast<int32_t>(program),
                                                      .op = op,
                                                      .tag = static_cast<int32_t>(tag),
                                                      .before = before,
                                                      .sends = -1,
                                                      .receives = -1};
      number_of_[tag * programs_.size() + program] = number;
      of_[program].communications[i] = number;
      of_[program].places[static_cast<size_t>(op)].communication = number;
      before = number;
    }
  }
}

void StepLinks::add_lists(size_t program) {
  const Program& of = programs_[program];
  OfProgram& own = of_[program];
  std::unordered_map<const MessageList*, int32_t> sent, received;
  const auto place_of = [&](const Op& op, const MessageList& list, auto& known, Side& side) {
    const auto [entry, is_new] = known.emplace(&list, -1);
    if (is_new) entry->second = add_list(program, op, list, side);
    return entry->second;
  };
  for (const int32_t number : own.communications) {
    Communication& one = communications_[static_cast<size_t>(number)];
    const Op& op = of.ops[static_cast<size_t>(one.op)];
    one.sends = place_of(op, of.sends(op), sent, own.sent);
    one.receives = place_of(op, of.receives(op), received, own.received);
  }
}

void StepLinks::add_waits(size_t program) {
  const Program& of = programs_[program];
  OfProgram& own = of_[program];
  const auto add = [&own](const std::vector<int32_t>& ops) {
    for (const int32_t op : ops) {
      const int32_t number = own.places.at(static_cast<size_t>(op)).communication;
      if (number >= 0) own.waits.push_back(number);
    }
    return static_cast<uint32_t>(own.waits.size());
  };
  for (size_t at = 0; at < of.ops.size(); ++at) {
    own.places[at].wait_sends = add(of.ops[at].wait_for);
    own.places[at + 1].waits_for = add(of.ops[at].wait_sends);
  }
}

/// A list with what each message shares of its rank's port: until it has left, as much of each
/// larger one has, and all of the smaller ones.
int32_t StepLinks::add_list(size_t program, const Op& op, const MessageList& list, Side& side) {
  const size_t begin = side.messages.size();
  for (const PeerMessage& message : list.messages)
    side.messages.push_back(message_of(program, op, message));
  List made{.of = &list,
            .begin = static_cast<uint32_t>(begin),
            .end = static_cast<uint32_t>(side.messages.size())};
  std::array<std::vector<Message*>, 2> through;  // [PortOf]
  for (Message& message : std::span(side.messages).subspan(begin))
    through[static_cast<size_t>(message.port)].push_back(&message);
  for (size_t port = 0; port < through.size(); ++port) {
    std::vector<Message*>& messages = through[port];
    std::ranges::sort(messages, {}, &Message::bytes);
    int64_t& left = made.port_bytes[port];  // bytes of the smaller ones
    for (size_t k = 0; k < messages.size(); ++k) {
      messages[k]->shared_bytes =
          left + messages[k]->bytes * static_cast<int64_t>(messages.size() - k);
      left += messages[k]->bytes;
    }
  }
  side.lists.push_back(made);
  return static_cast<int32_t>(side.lists.size()) - 1;
}

/// Partners of a first rank do the same as that, at the same time.
StepLinks::Message StepLinks::message_of(size_t program, const Op& op,
                                         const PeerMessage& message) const {
  const int peer = programs_[program].rank_of(op, message.peer);
  const auto program_of = [this](int rank) {
    const auto place = static_cast<size_t>(rank);
    return rank >= 0 && place < program_of_.size() ? program_of_[place] : -1;
  };
  const int32_t own = program_of(peer);
  const int32_t played =
      own >= 0 ? own : program_of(peer - peer % programs_[program].stage.tensor.size);
  DISTCA_CHECK(played >= 0, "rank {}: {} with rank {}, which has no program", of_[program].rank,
               describe(op), peer);
  const bool is_inside = of_[program].rank / ranks_per_node_ == peer / ranks_per_node_;
  return {.program = played,
          .port = is_inside ? PortOf::kInside : PortOf::kBetween,
          .is_played = own >= 0,
          .bytes = message.bytes,
          .shared_bytes = 0};
}

/// The number by which messages of a communication name the rank of a program.
int StepLinks::name_of(size_t program, const Op& op) const {
  const TensorPlace& place = programs_[program].stage.tensor;
  if (is_of_tensor(op.kind)) return place.index;
  return op.bucket >= 0 ? of_[program].rank : of_[program].rank / place.size;
}

/// Links every so many-th program. All of a tag are linked before those of the next: they look at
/// the same lists, which stay in the processor's caches meanwhile.
void StepLinks::link(size_t part, size_t parts) {
  std::vector<std::vector<int32_t>> senders;  // [program / parts]
  for (size_t program = part; program < of_.size(); program += parts)
    senders.emplace_back(of_[program].received.messages.size(), -1);
  for (size_t i = 0; i < communications_.size(); ++i) {
    const auto program = static_cast<size_t>(communications_[i].program);
    if (program % parts != part) continue;
    const auto number = static_cast<int32_t>(i);
    check_peers(number);
    link_received(number, senders[program / parts]);
  }
}

/// Everyone with whom a communication has messages has a communication of its tag.
void StepLinks::check_peers(int32_t number) const {
  const Communication& own = communications_[static_cast<size_t>(number)];
  for (const bool is_sent : {false, true}) {
    for (const Message& message : messages(own, is_sent)) {
      DISTCA_CHECK(peer_of(number, message) >= 0, "rank {}: {} with rank {}, which has none",
                   rank_of(static_cast<size_t>(own.program)), describe(op_of(number)),
                   rank_of(static_cast<size_t>(message.program)));
    }
  }
}

/// Finds what each message shares of its sender's port. `senders` [received messages] is the list
/// that its sender had when this was found; -1 before.
void StepLinks::link_received(int32_t number, std::vector<int32_t>& senders) {
  Communication& own = communications_[static_cast<size_t>(number)];
  Side& side = of_[static_cast<size_t>(own.program)].received;
  const List list = side.lists[static_cast<size_t>(own.receives)];
  size_t likely = 0;
  for (size_t i = list.begin; i < list.end; ++i) {
    const int32_t peer = peer_of(number, side.messages[i]);
    const Communication& sender = communications_[static_cast<size_t>(peer)];
    if (!side.messages[i].is_played || senders[i] == sender.sends) continue;
    if (senders[i] >= 0) {  // communications that share the list here do not there: a list alone
      own.receives = static_cast<int32_t>(side.lists.size());
      side.lists.push_back(list);
      side.lists.back().begin = static_cast<uint32_t>(side.messages.size());
      for (size_t k = list.begin; k < list.end; ++k)
        side.messages.push_back(Message(side.messages[k]));
      side.lists.back().end = static_cast<uint32_t>(side.messages.size());
      senders.resize(side.messages.size(), -1);
      return link_received(number, senders);
    }
    senders[i] = sender.sends;
    side.messages[i].shared_bytes = senders_share(number, sender, side.messages[i], likely);
  }
}

/// A partner of a first rank sends its peers as much as that rank receives from its own. `likely`
/// is the place of the message in the sender's list: that of the sender before, as a guess, then
/// it.
int64_t StepLinks::senders_share(int32_t number, const Communication& sender,
                                 const Message& message, size_t& likely) const {
  const Communication& own = communications_[static_cast<size_t>(number)];
  const MessageList& sends = list(sender, /*is_sent=*/true);
  const int name = name_of(static_cast<size_t>(own.program), op_of(number));
  const bool is_there = likely < sends.messages.size() && sends.messages[likely].peer == name;
  const PeerMessage* const there = is_there ? &sends.messages[likely] : sends.with(name);
  DISTCA_CHECK(there != nullptr && there->bytes == message.bytes,
               "ranks {} and {} have different messages in {}",
               rank_of(static_cast<size_t>(own.program)),
               rank_of(static_cast<size_t>(sender.program)), describe(op_of(number)));
  likely = static_cast<size_t>(there - sends.messages.data());
  return messages(sender, /*is_sent=*/true)[likely].shared_bytes;
}

}  // namespace distca
