#pragma once
// The exchanges of a program without its compute: the same messages, nothing packed, nothing
// attended; those of gradients, too, but not of weights. Thread rule: one thread a rank, all ranks
// alike.

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/program/program.h"
#include "distca/runtime/exchange_buffers.h"
#include "distca/runtime/executor.h"

namespace distca::bench {

class ExchangesAlone : private OpPlayer {
 public:
  ExchangesAlone(Communicator& comm, Program program);
  /// Adds to `times`.
  void play_once(OpTimes* times);

 private:
  void play(const Op&) override {}
  void pack(const Op&) override {}
  void issue(const Op& op) override;
  void wait(const Op& op) override;
  void land(const Op&) override {}
  void wait_sent(const Op& op) override;

  Communicator& comm_;
  Program program_;
  ExchangeBuffers buffers_;
  std::vector<std::vector<std::byte>> buckets_;                     // [bucket] of gradients
  std::map<uint32_t, std::unique_ptr<PendingExchange>> under_way_;  // by tag
};

}  // namespace distca::bench
