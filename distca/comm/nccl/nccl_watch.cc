#include "distca/comm/nccl/nccl_watch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "distca/base/clock.h"
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

/// Two threads: one asks the device, which may hold it for as long as it likes; the other
/// diagnoses. So the lock is never held where the device is asked, or where a mark is given back.
struct NcclWatch::State {
  const int rank;
  const CommOptions options;
  const std::shared_ptr<NcclConnections> connections;
  Health& health;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Exchange>> under_way;  // in the order of their issuing
  std::shared_ptr<Exchange> stands_at;  // where the device stands; its wait is the watchdog's
  double stands_since = 0;              // steady seconds
  std::optional<double> asked_since;    // steady seconds; while the device is asked
  int64_t questions = 0;                // that have been begun
  int64_t answered = 0;                 // the last one that has been
  bool hurry = false;                   // the next one is wanted now
  std::optional<std::string> lost;      // the device's error in place of an answer
  bool uses_health = false;             // the asking thread does
  std::optional<std::string> failure;
  bool stop = false;
  bool aborting = false;
  bool ended = false;  // the diagnosing thread has
  // The watchdog gave up, or was interrupted. Its own, since it may call when we are gone.
  const std::shared_ptr<std::atomic<bool>> gave_up = std::make_shared<std::atomic<bool>>(false);

  void ask();
  void diagnose_and_abort();
  Seconds tick() const { return Seconds(heartbeat_s(options) / 4); }  // between two looks
  bool is_over() const { return stop || failure; }
  bool has_passed(const DeviceMark& mark) {
    return !mark || connections->device().has_passed(mark);
  }
  std::shared_ptr<Exchange> first();
  std::shared_ptr<Exchange> awaited();
  void stand_at(std::shared_ptr<Exchange> exchange, std::unique_lock<std::mutex>& lock);
  std::optional<FailedWait> look(std::unique_lock<std::mutex>& lock);
  std::optional<FailedWait> look_twice(std::unique_lock<std::mutex>& lock);
  FailedWait failed_wait();
  std::string diagnose(const FailedWait& wait);
};

/// Takes out what has ended; the first of what has not.
std::shared_ptr<NcclWatch::Exchange> NcclWatch::State::first() {
  while (true) {
    std::shared_ptr<Exchange> front;
    {
      std::lock_guard lock(mutex);
      if (under_way.empty()) return nullptr;
      front = under_way.front();
      if (!front->is_issued) return front;
    }
    if (!has_passed(front->end)) return front;
    std::lock_guard lock(mutex);
    if (!under_way.empty() && under_way.front() == front) under_way.pop_front();
  }
}

/// Returns what the device waits for, or null while it does not wait.
std::shared_ptr<NcclWatch::Exchange> NcclWatch::State::awaited() {
  std::shared_ptr<Exchange> front = first();
  if (!front) return nullptr;
  std::vector<DeviceMark> from;
  {
    std::lock_guard lock(mutex);
    for (const auto& exchange : under_way) {
      if (exchange->is_awaited) from.push_back(exchange->awaited_from);
    }
  }
  const bool waits =
      std::ranges::any_of(from, [&](const DeviceMark& mark) { return has_passed(mark); });
  return waits ? front : nullptr;
}

/// Ends the wait for what the device stood at, and begins that for where it stands now.
void NcclWatch::State::stand_at(std::shared_ptr<Exchange> exchange,
                                std::unique_lock<std::mutex>& lock) {
  const bool stood = stands_at != nullptr;
  uses_health = true;
  lock.unlock();
  if (stood) health.watchdog->end();
  *gave_up = false;  // only now: until then the watchdog may have given up the former
  if (exchange) health.watchdog->begin([gave_up = gave_up] { *gave_up = true; });
  health.heartbeat.await(exchange ? std::span<const int>(exchange->peers) : std::span<const int>());
  lock.lock();
  stands_at.swap(exchange);
  stands_since = steady_seconds();
  uses_health = false;
  changed.notify_all();
}

/// The thread that asks the device. It may return from that long after the group has failed.
void NcclWatch::State::ask() {
  std::unique_lock lock(mutex);
  while (!is_over()) {
    asked_since = steady_seconds();
    hurry = false;
    const int64_t question = ++questions;
    lock.unlock();
    std::shared_ptr<Exchange> at;
    std::optional<std::string> why;
    try {
      if (connections->device().make_current) connections->device().make_current();
      at = awaited();
    } catch (const std::exception& error) {
      why = first_line(error);
    }
    lock.lock();
    asked_since.reset();
    if (is_over()) return;
    if (why) {
      lost = std::move(why);
      changed.notify_all();
      return;
    }
    if (at != stands_at) stand_at(std::move(at), lock);
    answered = question;
    changed.notify_all();
    changed.wait_for(lock, tick(), [this] { return is_over() || hurry; });
  }
}

/// Returns the wait for the exchange where the device stands. Our heartbeat goes on showing whom we
/// awaited: others may be asking.
FailedWait NcclWatch::State::failed_wait() {
  const double now = steady_seconds();
  if (stands_at)
    return {.rank = rank,
            .at = stands_at->at,
            .waited_s = now - stands_since,
            .peers = stands_at->peers};
  if (under_way.empty()) return {.rank = rank};
  const Exchange& front = *under_way.front();
  if (!asked_since) return {.rank = rank, .at = front.at};
  return {.rank = rank, .at = front.at, .waited_s = now - *asked_since, .peers = front.peers};
}

/// The wait that has failed, if one has.
std::optional<FailedWait> NcclWatch::State::look(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::optional<std::string> error = connections->error();
  lock.lock();
  if (!error) error = lost;
  const bool is_held = asked_since && steady_seconds() - *asked_since > options.timeout_s;
  if (!error && !health.heartbeat.alarmed() && !(*gave_up && stands_at) && !is_held)
    return std::nullopt;
  FailedWait failed = failed_wait();
  if (!error) return failed;
  failed.end = WaitEnd::kConnectionLost;
  failed.why = *error;
  return failed;
}

/// Returns what look() does, by where the device stands now and not a tick ago, unless the device
/// does not answer.
std::optional<FailedWait> NcclWatch::State::look_twice(std::unique_lock<std::mutex>& lock) {
  if (!look(lock)) return std::nullopt;
  const int64_t before = questions;
  hurry = true;
  changed.notify_all();
  changed.wait_for(lock, 2 * tick(), [&] { return is_over() || lost || answered > before; });
  return look(lock);
}

/// The diagnosis, or the one that was there before.
std::string NcclWatch::State::diagnose(const FailedWait& wait) {
  std::string why = health.heartbeat.diagnose(wait);
  std::lock_guard lock(mutex);
  if (!failure) failure = std::move(why);
  changed.notify_all();
  return *failure;
}

/// The thread that diagnoses a failure, and then aborts.
void NcclWatch::State::diagnose_and_abort() {
  std::unique_lock lock(mutex);
  while (!is_over()) {
    if (const std::optional<FailedWait> failed = look_twice(lock)) {
      lock.unlock();
      diagnose(*failed);
      lock.lock();
      break;
    }
    changed.wait_for(lock, tick(), [this] { return is_over() || *gave_up || lost; });
  }
  if (failure) {
    // NCCL ends the exchanges of other ranks with us, too, as if they had gone well. These know
    // of the failure by then, and take what they received for what it is.
    lock.unlock();
    std::this_thread::sleep_for(1.5 * Seconds(heartbeat_s(options)));
    lock.lock();
    aborting = true;
    changed.notify_all();
    lock.unlock();
    try {
      connections->abort();
    } catch (const std::exception&) {
      // The group has failed already, and its reason is known.
    }
    lock.lock();
  }
  ended = true;
  changed.notify_all();
}

NcclWatch::NcclWatch(int rank, const CommOptions& options,
                     std::shared_ptr<NcclConnections> connections, Health& health)
    : state_(new State{rank, options, std::move(connections), health}) {
  std::thread([state = state_] { state->ask(); }).detach();
  std::thread([state = state_] { state->diagnose_and_abort(); }).detach();
}

NcclWatch::~NcclWatch() {
  constexpr Seconds kExitReport(2);
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.stop = true;
  state.changed.notify_all();
  // One thread uses what dies with us until it aborts, the other one while uses_health is set.
  state.changed.wait(lock, [&] { return (state.ended || state.aborting) && !state.uses_health; });
  state.changed.wait_for(lock, kExitReport, [&] { return state.ended; });
  if (state.stands_at) state.health.watchdog->end();
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

std::string NcclWatch::end(const FailedWait& wait) { return state_->diagnose(wait); }

bool NcclWatch::is_idle() { return !state_->first(); }

}  // namespace distca
