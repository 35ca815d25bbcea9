#include "distca/comm/device_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <utility>

namespace distca {
namespace {

constexpr std::chrono::milliseconds kTick(50);

}  // namespace

DeviceWatch::DeviceWatch(Group group) : group_(std::move(group)), thread_([this] { run(); }) {}

DeviceWatch::~DeviceWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceWatch::watch(std::function<State()> state, const FailedWait& wait) {
  std::lock_guard lock(mutex_);
  watched_.push_back({std::move(state), wait, {}});
}

std::string DeviceWatch::failure() const {
  std::lock_guard lock(mutex_);
  return failure_.empty() ? "" : fmt::format(" ({})", failure_);
}

/// An exception that left the thread would end the process without a word.
DeviceWatch::State DeviceWatch::state_of(const Watched& one) {
  try {
    return one.state();
  } catch (const std::exception& error) {
    failure_ = error.what();
  } catch (...) {
    failure_ = "an exception of no known kind";
  }
  return State::kLost;
}

/// Whether an exchange has failed, `failed`: a lost one first, else the one that waits longest.
bool DeviceWatch::look(FailedWait* failed) {
  std::vector<Watched> left;
  for (Watched& one : watched_) {
    const State state = state_of(one);
    if (state == State::kLost) {
      *failed = std::move(one.wait);
      failed->waited_s = one.since.seconds();
      failed->end = WaitEnd::kConnectionLost;
      return true;
    }
    if (state == State::kUnderWay) left.push_back(std::move(one));
  }
  watched_ = std::move(left);
  if (watched_.empty()) return false;
  *failed = watched_.front().wait;
  failed->waited_s = watched_.front().since.seconds();
  return failed->waited_s > group_.timeout_s || group_.alarmed();
}

void DeviceWatch::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kTick, [this] { return stop_; })) {
    FailedWait failed;
    if (!look(&failed)) continue;
    lock.unlock();
    std::string thrown;
    try {
      group_.abort(failed);
    } catch (const std::exception& error) {
      thrown = error.what();
    } catch (...) {
      thrown = "an exception of no known kind";
    }
    lock.lock();
    if (failure_.empty()) failure_ = thrown;
    return;
  }
}

}  // namespace distca
