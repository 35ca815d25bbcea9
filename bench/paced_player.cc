#include "bench/paced_player.h"

#include <sys/prctl.h>
#include <time.h>

#include <cmath>

#include "distca/base/clock.h"
#include "distca/comm/collectives.h"
#include "distca/runtime/executor.h"
#include "distca/runtime/messages_under_way.h"

namespace distca::bench {
namespace {

/// An idle core takes some 70 us to wake up, which an operation of a real step would not lose: so
/// the end of a sleep is spent looking at the clock.
constexpr double kAwakeS = 150e-6;

/// Until a moment of the steady clock. Returns for how long it looked at the clock. Waking up later
/// than that is the sleeper's loss: nothing makes it good.
double sleep_until(double at_s) {
  const double asleep_until = at_s - kAwakeS;
  timespec at{.tv_sec = static_cast<time_t>(asleep_until),
              .tv_nsec = static_cast<long>((asleep_until - std::floor(asleep_until)) * 1e9)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) != 0) {
  }
  const double awake = steady_seconds();
  double now = awake;
  while (now < at_s) now = steady_seconds();
  return now - awake;
}

class Sleeper final : public OpPlayer {
 public:
  Sleeper(const Program& program, const ExchangeBuffers& buffers, Communicator& comm,
          const std::function<double(const Op&)>& seconds, bool sends)
      : buffers_(buffers), seconds_(seconds), sends_(sends), under_way_(program, comm) {}

  void play(const Op& op) override {
    const double price = seconds_(op);
    if (price <= 0) return;
    const double begin = steady_seconds();
    awake_s += sleep_until(begin + price);
    const double slept = steady_seconds() - begin;
    slept_s += slept;
    late_s += slept - price;
  }
  void pack(const Op&) override {}
  void issue(const Op& op) override {
    if (sends_) under_way_.issue(op, place(op.out), place(op.in));
  }
  void wait(const Op& op) override { under_way_.wait(op); }
  void land(const Op&) override {}
  void wait_sent(const Op& op) override { under_way_.wait_sent(op); }

  double slept_s = 0, late_s = 0, awake_s = 0;

 private:
  std::byte* place(int32_t buffer) const { return buffer < 0 ? nullptr : buffers_.data(buffer); }

  const ExchangeBuffers& buffers_;
  const std::function<double(const Op&)>& seconds_;
  const bool sends_;
  MessagesUnderWay under_way_;
};

}  // namespace

PacedPlayer::PacedPlayer(Communicator& comm) : comm_(comm), buffers_(/*cuda_device=*/-1) {
  prctl(PR_SET_TIMERSLACK, 1UL);  // ns; by default a sleep may end 50 us late
}

PacedRank PacedPlayer::play(const Program& program, const std::function<double(const Op&)>& seconds,
                            TraceRecorder* recorder) {
  return run(program, seconds, /*sends=*/true, recorder);
}

PacedRank PacedPlayer::sleep(const Program& program,
                             const std::function<double(const Op&)>& seconds) {
  return run(program, seconds, /*sends=*/false, nullptr);
}

PacedRank PacedPlayer::run(const Program& program, const std::function<double(const Op&)>& seconds,
                           bool sends, TraceRecorder* recorder) {
  buffers_.prepare(program);
  Sleeper sleeper(program, buffers_, comm_, seconds, sends);
  OpTimes times;
  barrier(comm_, "begin of a step");
  PacedRank played{.begin_s = steady_seconds()};
  const double processor_begin = process_processor_seconds();
  distca::play(program, sleeper, &times, recorder);
  played.end_s = steady_seconds();
  played.processor_s = process_processor_seconds() - processor_begin - sleeper.awake_s;
  played.slept_s = sleeper.slept_s;
  played.late_s = sleeper.late_s;
  played.waited_s = times.of(OpPart::kWait);
  return played;
}

}  // namespace distca::bench
