#include "distca/train/messages_under_way.h"

#include <vector>

#include "distca/base/error.h"
#include "distca/comm/tags.h"

namespace distca {
namespace {

std::vector<Message> messages(const MessageList& list, uint32_t tag, std::byte* base) {
  std::vector<Message> all;
  for (const PeerMessage& m : list.messages)
    all.push_back({.peer = m.peer, .tag = tag, .data = base + m.offset, .bytes = m.bytes});
  return all;
}

}  // namespace

void MessagesUnderWay::issue(const Op& op, std::byte* from, std::byte* to) {
  DISTCA_CHECK_LT(op.tag, kExchangeTags);
  const MessageList &sends = program_.sends(op), &receives = program_.receives(op);
  if (sends.empty() && receives.empty()) return;
  auto issued =
      comm_.exchange(messages(sends, op.tag, from), messages(receives, op.tag, to), describe(op));
  DISTCA_CHECK(pending_.emplace(op.tag, std::move(issued)).second, "{}: its tag {} is in use",
               describe(op), op.tag);
}

void MessagesUnderWay::wait(const Op& op) {
  if (const auto issued = pending_.find(op.tag); issued != pending_.end())
    issued->second->wait_received();
}

void MessagesUnderWay::wait_sent(const Op& op) {
  const auto issued = pending_.find(op.tag);
  if (issued == pending_.end()) return;
  issued->second->wait();
  pending_.erase(issued);
}

}  // namespace distca
