#pragma once
// What a rank's waits need to end: a watchdog, and the board, which interrupts it when a rank is
// lost and says who is to blame. Thread rule: as Board and Watchdog.

#include <memory>

#include "distca/comm/health/board.h"
#include "distca/comm/health/watchdog.h"

namespace distca {

struct Health {
  /// As Board.
  Health(const Rendezvous& rendezvous, const CommOptions& options, c10d::Store* made = nullptr)
      : watchdog(std::make_shared<Watchdog>(options.timeout_s, heartbeat_s(options) / 4)),
        board(
            rendezvous, options, [watchdog = watchdog] { watchdog->interrupt(); }, made) {}

  const std::shared_ptr<Watchdog> watchdog;  // also the heartbeat thread's, which may outlive us
  Board board;
};

}  // namespace distca
