#include "distca/runtime/messages_under_way.h"

#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/tags.h"

namespace distca {
namespace {

std::vector<Message> messages(const Program& program, const Op& op, const MessageList& list,
                              std::byte* base) {
  std::vector<Message> all;
  for (const PeerMessage& m : list.messages) {
    const int peer = program.rank_of(op, m.peer);
    all.push_back({.peer = peer, .tag = op.tag, .data = base + m.offset, .bytes = m.bytes});
  }
  return all;
}

}  // namespace

void MessagesUnderWay::issue(const Op& op, std::byte* from, std::byte* to) {
  const MessageList &sends = program_.sends(op), &receives = program_.receives(op);
  if (sends.empty() && receives.empty()) return;
  add(op, comm_.exchange(messages(program_, op, sends, from), messages(program_, op, receives, to),
                         describe(op)));
}

void MessagesUnderWay::add(const Op& op, std::unique_ptr<PendingExchange> issued) {
  DISTCA_CHECK_LT(op.tag, kExchangeTags);
  if (issued == nullptr) return;
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
