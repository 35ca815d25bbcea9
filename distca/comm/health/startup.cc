#include "distca/comm/health/startup.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "distca/base/clock.h"
#include "distca/base/error.h"

namespace distca {
namespace {

constexpr std::chrono::milliseconds kTick(20);

/// The state that the thread and its caller share.
struct Connecting {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::exception_ptr thrown;
};

/// Why it failed, in one line. An Error is the caller's, and thrown.
std::string why(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    return first_line(error);
  }
}

}  // namespace

void connect_by_deadline(const Rendezvous& rendezvous, Heartbeat& heartbeat,
                         std::function<void()> connect,
                         const std::function<std::string()>& cannot) {
  const double start = steady_seconds();
  const Activity at = heartbeat.begin("connecting all ranks");
  const auto shared = std::make_shared<Connecting>();
  std::thread([shared, connect = std::move(connect)] {
    std::exception_ptr thrown;
    try {
      connect();
    } catch (...) {
      thrown = std::current_exception();
    }
    std::lock_guard lock(shared->mutex);
    shared->thrown = std::move(thrown);
    shared->ended = true;
    shared->changed.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  while (!shared->ended && !heartbeat.alarmed() && !heartbeat.neighbour_lost() &&
         steady_seconds() < heartbeat.startup_deadline()) {
    shared->changed.wait_for(lock, kTick);
  }
  if (shared->ended && !shared->thrown) {
    lock.unlock();
    return heartbeat.wait_for_all_connected();
  }
  FailedWait wait{.rank = rendezvous.rank, .at = at, .waited_s = steady_seconds() - start};
  if (shared->ended)
    wait.why = fmt::format("rank {} {}: {}", rendezvous.rank, cannot(), why(shared->thrown));
  lock.unlock();
  throw Error(ErrorKind::kComm, "{}", heartbeat.diagnose(wait));
}

}  // namespace distca
