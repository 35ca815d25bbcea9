#pragma once
// The means by which a rank's waits end: a watchdog, and heartbeats, which interrupt it when a rank
// is lost and say who is to blame. Thread rule: as Heartbeat and Watchdog.

#include <functional>
#include <memory>
#include <utility>

#include "distca/comm/health/heartbeat.h"
#include "distca/comm/health/watchdog.h"

namespace distca {

struct Health {
  /// Takes the arguments of Heartbeat, and throws what it throws.
  Health(const Rendezvous& rendezvous, const CommOptions& options, c10d::Store* made = nullptr,
         std::function<bool()> is_over = nullptr)
      : watchdog(std::make_shared<Watchdog>(options.timeout_s, heartbeat_s(options) / 4)),
        heartbeat(
            rendezvous, options, [watchdog = watchdog] { watchdog->interrupt(); }, made,
            std::move(is_over)) {}

  const std::shared_ptr<Watchdog> watchdog;  // also the heartbeat thread's, which may outlive us
  Heartbeat heartbeat;
};

}  // namespace distca
