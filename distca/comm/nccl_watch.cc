#include "distca/comm/nccl_watch.h"

#include <chrono>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "distca/base/error.h"

namespace distca {

using Seconds = std::chrono::duration<double>;

struct NcclWatch::Exchange {
  const Activity at;
  const std::vector<int> peers;
  bool is_issued = false;
  DeviceMark end = {};     // once it is
  bool is_awaited = true;  // by the thread that issues it, then by nobody, then from the mark on
  DeviceMark awaited_from = {};
};

struct NcclWatch::State {
  State(Group made, Health& health) : group(std::move(made)), health(health) {}

  const Group group;
  Health& health;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Exchange>> under_way;  // in the order of their issuing
  std::shared_ptr<Exchange> stands_at;  // where the device stands; its wait is the watchdog's
  bool gave_up = false;                 // the watchdog did, or was interrupted
  std::optional<std::string> failure;
  bool is_current = false;  // the device is that of the watching thread
  bool stop = false;
  bool aborting = false;
  bool ended = false;  // the watching thread has

  void run();
  bool has_passed(const DeviceMark& mark) { return !mark || group.has_passed(mark); }
  bool pop_ended();
  std::shared_ptr<Exchange> awaited();
  std::optional<FailedWait> look(std::unique_lock<std::mutex>& lock);
  std::optional<FailedWait> look_closely(std::unique_lock<std::mutex>& lock);
  void abort();
  void stand_at(std::shared_ptr<Exchange> exchange, std::unique_lock<std::mutex>& lock);
  FailedWait failed_wait(std::unique_lock<std::mutex>& lock);
  std::string judge(const FailedWait& wait);
};

/// Takes out what has ended; true if anything is left.
bool NcclWatch::State::pop_ended() {
  while (!under_way.empty() && under_way.front()->is_issued && has_passed(under_way.front()->end)) {
    under_way.pop_front();
  }
  return !under_way.empty();
}

/// What the device waits for; null while it does not wait.
std::shared_ptr<NcclWatch::Exchange> NcclWatch::State::awaited() {
  if (!pop_ended()) return nullptr;
  for (const auto& exchange : under_way) {
    if (exchange->is_awaited && has_passed(exchange->awaited_from)) return under_way.front();
  }
  return nullptr;
}

/// Ends the wait for what the device stood at, and begins that for where it stands now. The
/// watchdog calls back with its own lock held, so ours is open meanwhile.
void NcclWatch::State::stand_at(std::shared_ptr<Exchange> exchange,
                                std::unique_lock<std::mutex>& lock) {
  const bool stood = stands_at != nullptr;
  stands_at = exchange;
  lock.unlock();
  if (stood) health.watchdog->end();
  lock.lock();
  gave_up = false;  // only now: until then the watchdog may have given up the former
  lock.unlock();
  if (exchange) {
    health.watchdog->begin([this] {
      std::lock_guard of_state(mutex);
      gave_up = true;
      changed.notify_all();
    });
  }
  health.heartbeat.await(exchange ? std::span<const int>(exchange->peers) : std::span<const int>());
  lock.lock();
}

/// Of where the device stands. Our heartbeat goes on showing whom we awaited: others may be asking.
FailedWait NcclWatch::State::failed_wait(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Exchange> at = stands_at;
  if (at) {
    lock.unlock();
    const double waited_s = health.watchdog->end();
    lock.lock();
    return {.rank = group.rank, .at = at->at, .waited_s = waited_s, .peers = at->peers};
  }
  if (under_way.empty()) return {.rank = group.rank};
  return {.rank = group.rank, .at = under_way.front()->at};
}

/// The wait that has failed, if one has.
std::optional<FailedWait> NcclWatch::State::look(std::unique_lock<std::mutex>& lock) {
  if (!std::exchange(is_current, true) && group.make_current) group.make_current();
  const std::shared_ptr<Exchange> at = awaited();
  if (at != stands_at) stand_at(at, lock);
  const std::optional<std::string> error = group.error();
  if (!error && !health.heartbeat.alarmed() && !(gave_up && stands_at)) return std::nullopt;
  FailedWait failed = failed_wait(lock);
  if (!error) return failed;
  failed.end = WaitEnd::kConnectionLost;
  failed.why = *error;
  return failed;
}

/// The diagnosis, or the one that was there before.
std::string NcclWatch::State::judge(const FailedWait& wait) {
  std::string why = health.heartbeat.judge(wait);
  std::lock_guard lock(mutex);
  if (!failure) failure = std::move(why);
  changed.notify_all();
  return *failure;
}

/// The same, also where the device is lost and throws at whoever asks it.
std::optional<FailedWait> NcclWatch::State::look_closely(std::unique_lock<std::mutex>& lock) {
  std::string why;
  try {
    return look(lock);
  } catch (const std::exception& error) {
    why = first_line(error);
  }
  if (!lock.owns_lock()) lock.lock();
  FailedWait failed = failed_wait(lock);
  failed.end = WaitEnd::kConnectionLost;
  failed.why = why;
  return failed;
}

void NcclWatch::State::abort() {
  try {
    group.abort();
  } catch (const std::exception&) {
    // The group has failed already, and its reason is known.
  }
}

void NcclWatch::State::run() {
  std::unique_lock lock(mutex);
  while (!stop && !failure) {
    if (const std::optional<FailedWait> failed = look_closely(lock)) {
      lock.unlock();
      judge(*failed);
      lock.lock();
      break;
    }
    changed.wait_for(lock, Seconds(group.tick_s), [this] { return stop || failure || gave_up; });
  }
  if (std::exchange(stands_at, nullptr)) {
    lock.unlock();
    health.watchdog->end();  // which calls back no more: it may outlive us
    lock.lock();
  }
  if (failure) {
    aborting = true;
    lock.unlock();
    abort();
    lock.lock();
  }
  ended = true;
  changed.notify_all();
}

NcclWatch::NcclWatch(Group group, Health& health)
    : state_(std::make_shared<State>(std::move(group), health)) {
  std::thread([state = state_] { state->run(); }).detach();
}

NcclWatch::~NcclWatch() {
  constexpr Seconds kFarewell(2);
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  // Before an abort, the thread uses what dies with us.
  state_->changed.wait(lock, [&] { return state_->ended || state_->aborting; });
  state_->changed.wait_for(lock, kFarewell, [&] { return state_->ended; });
}

std::shared_ptr<NcclWatch::Exchange> NcclWatch::begin(Activity at, std::vector<int> peers) {
  const std::shared_ptr<Exchange> exchange(
      new Exchange{.at = std::move(at), .peers = std::move(peers)});
  std::lock_guard lock(state_->mutex);
  state_->under_way.push_back(exchange);
  return exchange;
}

void NcclWatch::issued(Exchange& exchange, DeviceMark end) {
  std::lock_guard lock(state_->mutex);
  exchange.end = std::move(end);
  exchange.is_issued = true;
  exchange.is_awaited = false;
}

void NcclWatch::wait_for(Exchange& exchange, DeviceMark from) {
  std::lock_guard lock(state_->mutex);
  if (exchange.is_awaited) return;
  exchange.awaited_from = std::move(from);
  exchange.is_awaited = true;
}

std::optional<std::string> NcclWatch::failure() const {
  std::lock_guard lock(state_->mutex);
  return state_->failure;
}

std::string NcclWatch::end(const FailedWait& wait) { return state_->judge(wait); }

bool NcclWatch::is_idle() {
  std::lock_guard lock(state_->mutex);
  return !state_->pop_ended();
}

}  // namespace distca
