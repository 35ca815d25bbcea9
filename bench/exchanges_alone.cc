#include "bench/exchanges_alone.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "distca/program/gradient_exchange.h"

namespace distca::bench {

ExchangesAlone::ExchangesAlone(Communicator& comm, Program program)
    : comm_(comm), program_(std::move(program)), buffers_(/*cuda_device=*/-1) {
  buffers_.prepare(program_);
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const auto buffer = static_cast<int32_t>(i);
    std::memset(buffers_.data(buffer), 0, static_cast<size_t>(buffers_.bytes(buffer)));
  }
  if (program_.gradients != nullptr) buckets_.resize(program_.gradients->buckets.size());
  for (const Op& op : program_.ops) {
    if (op.bucket < 0) continue;
    const int64_t bytes =
        std::max(program_.sends(op).buffer_bytes, program_.receives(op).buffer_bytes);
    std::vector<std::byte>& bucket = buckets_[op.bucket];
    bucket.resize(std::max(bucket.size(), static_cast<size_t>(bytes)));
  }
}

void ExchangesAlone::play_once(OpTimes* times) { distca::play(program_, *this, times); }

void ExchangesAlone::issue(const Op& op) {
  const auto messages_of = [&](const MessageList& list, int32_t buffer) {
    std::byte* const data = buffer < 0 ? buckets_[op.bucket].data() : buffers_.data(buffer);
    std::vector<Message> messages;
    for (const PeerMessage& one : list.messages) {
      messages.push_back(
          {.peer = one.peer, .tag = op.tag, .data = data + one.offset, .bytes = one.bytes});
    }
    return messages;
  };
  const MessageList &sends = program_.sends(op), &receives = program_.receives(op);
  if (sends.empty() && receives.empty()) return;
  under_way_[op.tag] =
      comm_.exchange(messages_of(sends, op.out), messages_of(receives, op.in), describe(op));
}

void ExchangesAlone::wait(const Op& op) {
  if (const auto found = under_way_.find(op.tag); found != under_way_.end())
    found->second->wait_received();
}

void ExchangesAlone::wait_sent(const Op& op) {
  if (const auto found = under_way_.find(op.tag); found != under_way_.end()) {
    found->second->wait();
    under_way_.erase(found);
  }
}

}  // namespace distca::bench
