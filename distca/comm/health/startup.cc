#include "distca/comm/health/startup.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/error.h"

namespace distca {

void connect_by_deadline(const Rendezvous& rendezvous, Heartbeat& heartbeat,
                         const std::function<void(double timeout_s)>& connect,
                         const std::function<std::string()>& cannot) {
  constexpr std::chrono::milliseconds kTick(20);
  constexpr double kOursFirst = 1;  // seconds
  const Stopwatch watch;
  const double left_s = std::max(heartbeat.startup_deadline() - steady_seconds(), 0.0);
  FailedWait wait{.rank = rendezvous.rank, .at = heartbeat.begin("connecting all ranks")};
  std::packaged_task<void()> task([=] { connect(left_s + kOursFirst); });
  std::future<void> result = task.get_future();
  std::thread(std::move(task)).detach();
  bool ended = false;
  do {
    ended = result.wait_for(kTick) == std::future_status::ready;
  } while (!ended && !heartbeat.alarmed() && !heartbeat.neighbour_lost() &&
           steady_seconds() < heartbeat.startup_deadline());
  try {
    if (ended) result.get();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    wait.why = fmt::format("rank {} {}: {}", rendezvous.rank, cannot(), first_line(error));
  }
  if (ended && wait.why.empty()) return heartbeat.wait_for_all_connected();
  wait.waited_s = watch.seconds();
  throw Error(ErrorKind::kComm, "{}", heartbeat.diagnose(wait));
}

}  // namespace distca
