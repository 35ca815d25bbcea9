#pragma once
// The communications of a program whose messages are under way, for those that play them
// (step_attention.h, train/weight_update.h, train/stage_p2p.h). Thread rule: one thread.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "distca/comm/communicator.h"
#include "distca/program/program.h"

namespace distca {

class MessagesUnderWay {
 public:
  /// Borrows both. The ranks of the step (Program::rank_of) are those of `comm`.
  MessagesUnderWay(const Program& program, Communicator& comm) : program_(program), comm_(comm) {}

  /// Issues what a communication sends and receives, at the offsets of its messages from these
  /// places. A place without messages may be null.
  void issue(const Op& op, std::byte* from, std::byte* to);
  /// Keeps what somebody else has issued for a communication; null if it has no messages.
  void add(const Op& op, std::unique_ptr<PendingExchange> issued);
  // With the names and the meaning of OpPlayer's (runtime/executor.h).
  void wait(const Op& op);
  void wait_sent(const Op& op);

 private:
  const Program& program_;
  Communicator& comm_;
  std::map<uint32_t, std::unique_ptr<PendingExchange>> pending_;  // [tag]
};

}  // namespace distca
