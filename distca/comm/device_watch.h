#pragma once
// Watches exchanges that a device waits for and no host thread does, with a thread of its own: ends
// the group when one is lost or not over in time, so that whoever waits for the device comes back.
// Thread rule: watch() and failure() from any thread.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/comm/verdict.h"

namespace distca {

class DeviceWatch {
 public:
  enum class State { kUnderWay, kOver, kLost };
  struct Group {
    double timeout_s = 0;
    std::function<bool()> alarmed;                 // no use in waiting for anybody
    std::function<void(const FailedWait&)> abort;  // called once, by the watching thread
  };

  explicit DeviceWatch(Group group);
  ~DeviceWatch();

  /// `state` is asked by the watching thread; one that throws has lost its exchange.
  void watch(std::function<State()> state, const FailedWait& wait);
  /// What state() or abort() threw, in parentheses behind a space; empty if nothing did.
  std::string failure() const;

 private:
  struct Watched {
    std::function<State()> state;
    FailedWait wait;
    Stopwatch since;
  };

  void run();
  bool look(FailedWait* failed);
  State state_of(const Watched& one);

  const Group group_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> watched_;  // in the order of their waits
  std::string failure_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace distca
