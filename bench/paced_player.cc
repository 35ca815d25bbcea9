#include "bench/paced_player.h"

#include <sys/prctl.h>

#include <chrono>
#include <thread>

#include "distca/base/clock.h"
#include "distca/comm/collectives.h"
#include "distca/runtime/executor.h"
#include "distca/runtime/messages_under_way.h"

namespace distca::bench {
namespace {

/// An idle core takes some 70 us to wake up, which an operation of a real step would not lose: so
/// the end of a sleep is spent looking at the clock.
constexpr double kAwakeS = 150e-6;

/// Until a moment of the steady clock. Waking up later than that is the sleeper's loss: nothing
/// makes it good.
void sleep_until(double at_s) {
  std::this_thread::sleep_for(std::chrono::duration<double>(at_s - kAwakeS - steady_seconds()));
  while (steady_seconds() < at_s) {
  }
}

class Sleeper final : public OpPlayer {
 public:
  Sleeper(const Program& program, const ExchangeBuffers& buffers, Communicator& comm,
          const std::function<double(const Op&)>& seconds)
      : buffers_(buffers), seconds_(seconds), under_way_(program, comm) {}

  void play(const Op& op) override {
    const double price = seconds_(op);
    if (price > 0) sleep_until(steady_seconds() + price);
  }
  void pack(const Op&) override {}
  void issue(const Op& op) override { under_way_.issue(op, place(op.out), place(op.in)); }
  void wait(const Op& op) override { under_way_.wait(op); }
  void land(const Op&) override {}
  void wait_sent(const Op& op) override { under_way_.wait_sent(op); }

 private:
  std::byte* place(int32_t buffer) const { return buffer < 0 ? nullptr : buffers_.data(buffer); }

  const ExchangeBuffers& buffers_;
  const std::function<double(const Op&)>& seconds_;
  MessagesUnderWay under_way_;
};

}  // namespace

PacedPlayer::PacedPlayer(Communicator& comm) : comm_(comm), buffers_(/*cuda_device=*/-1) {
  prctl(PR_SET_TIMERSLACK, 1UL);  // ns; by default a sleep may end 50 us late
}

PacedRank PacedPlayer::play(const Program& program,
                            const std::function<double(const Op&)>& seconds) {
  buffers_.prepare(program);
  Sleeper sleeper(program, buffers_, comm_, seconds);
  OpTimes times;
  barrier(comm_, "begin of a step");
  PacedRank played{.begin_s = steady_seconds()};
  distca::play(program, sleeper, &times);
  played.end_s = steady_seconds();
  return played;
}

}  // namespace distca::bench
