#include "distca/comm/long_work.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/comm/collectives.h"

namespace distca {

namespace {
/// The seconds after which a line names the rank that is awaited.
constexpr double kFirstWord = 60;
}  // namespace

int await_long_work(Communicator& comm, double timeout_s, std::string_view operation,
                    double limit_s,
                    const std::function<bool(std::chrono::duration<double>)>& is_done) {
  enum : uint8_t { kDone, kWorking, kTooLong };
  const std::chrono::duration<double> slice(std::min(5.0, timeout_s / 4));
  const Stopwatch watch;
  double next_word_s = std::min(kFirstWord, timeout_s);
  while (true) {
    const uint8_t mine = is_done(slice) ? kDone : watch.seconds() > limit_s ? kTooLong : kWorking;
    const std::vector<uint8_t> all = all_gather(comm, mine, operation);
    if (comm.rank() == 0 && std::isinf(limit_s) && watch.seconds() > next_word_s &&
        std::ranges::count(all, kWorking) > 0) {
      const auto late = std::ranges::find(all, kWorking) - all.begin();
      standard_error().line(fmt::format("{}: rank {} is at it for {:.0f} s; nothing ends this wait",
                                        operation, late, watch.seconds()));
      next_word_s = 2 * watch.seconds();
    }
    if (const auto late = std::ranges::find(all, kTooLong); late != all.end())
      return static_cast<int>(late - all.begin());
    if (std::ranges::count(all, kDone) == comm.size()) return -1;
  }
}

void do_long_work(Communicator& comm, double timeout_s, std::string_view operation,
                  const std::function<void()>& work) {
  // If another rank is lost meanwhile, its destructor waits for the work, which may use what the
  // caller is about to destroy.
  std::future<void> done = work ? std::async(std::launch::async, work) : std::future<void>();
  await_long_work(comm, timeout_s, operation, std::numeric_limits<double>::infinity(),
                  [&](std::chrono::duration<double> most) {
                    return !done.valid() || done.wait_for(most) == std::future_status::ready;
                  });
  std::optional<ErrorKind> mine;
  std::string why;
  try {
    if (done.valid()) done.get();
  } catch (const Error& error) {
    mine = error.kind();
    why = error.what();
  }
  const std::vector<std::optional<ErrorKind>> all = all_gather(comm, mine, operation);
  const auto first = std::ranges::find_if(all, [](const auto& one) { return one.has_value(); });
  if (first == all.end()) return;
  const auto rank = first - all.begin();
  const std::string said = all_gather_texts(comm, why, operation)[rank];
  throw Error(**first, "{}{}", rank == 0 ? "" : fmt::format("rank {}: ", rank), said);
}

void do_on_rank_0(Communicator& comm, double timeout_s, std::string_view operation,
                  const std::function<void()>& work) {
  do_long_work(comm, timeout_s, operation, comm.rank() == 0 ? work : std::function<void()>());
}

}  // namespace distca
