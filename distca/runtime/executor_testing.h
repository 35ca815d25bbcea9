#pragma once
// For tests and measurements of the executor itself. Thread rule: as OpPlayer.

#include "distca/runtime/executor.h"

namespace distca {

/// Does nothing.
class IdlePlayer : public OpPlayer {
 public:
  void play(const Op&) override {}
  void pack(const Op&) override {}
  void issue(const Op&) override {}
  void wait(const Op&) override {}
  void land(const Op&) override {}
  void wait_sent(const Op&) override {}
};

}  // namespace distca
