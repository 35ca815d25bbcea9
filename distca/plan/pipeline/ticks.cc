#include "distca/plan/pipeline/ticks.h"

#include <algorithm>

#include "distca/base/error.h"

namespace distca {

int Tick::num_working() const {
  return static_cast<int>(
      std::ranges::count_if(stages, [](const TickStage& stage) { return stage.micro_batch >= 0; }));
}

std::vector<Tick> aligned_ticks(int stages, int micro_batches, bool trains) {
  DISTCA_CHECK(stages >= 1 && micro_batches >= 1, "{} stages, {} micro-batches", stages,
               micro_batches);
  const auto tick = [&](int number, Pass pass) {
    Tick made;
    for (int stage = 0; stage < stages; ++stage) {
      const int behind = pass == Pass::kForward ? stage : stages - 1 - stage;
      const int micro_batch = number - behind;
      const bool works = micro_batch >= 0 && micro_batch < micro_batches;
      made.stages.push_back({.micro_batch = works ? micro_batch : -1, .pass = pass});
    }
    return made;
  };
  const int before = stages - 1;  // forward ticks before the first backward tick
  const int of_a_pass = micro_batches + before;
  std::vector<Tick> ticks;
  for (int number = 0; number < of_a_pass + before; ++number) {
    if (number < of_a_pass) ticks.push_back(tick(number, Pass::kForward));
    if (trains && number >= before) ticks.push_back(tick(number - before, Pass::kBackward));
  }
  return ticks;
}

int most_in_flight(std::span<const Tick> ticks, int stage) {
  int now = 0, most = 0;
  for (const Tick& tick : ticks) {
    const TickStage& own = tick.stages[stage];
    if (own.micro_batch < 0) continue;
    if (own.pass == Pass::kForward) {
      most = std::max(most, ++now);
    } else {
      --now;
    }
  }
  return most;
}

}  // namespace distca
