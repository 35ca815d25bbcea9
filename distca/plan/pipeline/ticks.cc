#include "distca/plan/pipeline/ticks.h"

#include <algorithm>
#include <array>
#include <utility>

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

namespace {

/// A stage's forward or backward with this number, in the order of interleaved 1F1B.
TickStage interleaved_work(int stages, int virtual_stages, int number, Pass pass) {
  const int round = number / (stages * virtual_stages), turn = number % (stages * virtual_stages);
  const int place = turn / stages;
  return {.micro_batch = round * stages + turn % stages,
          .pass = pass,
          .virtual_stage = pass == Pass::kForward ? place : virtual_stages - 1 - place};
}

/// In lockstep: a stage plays a forward as long as it then has at most most_ahead(stage) more than
/// backwards, otherwise a backward, each once its input was made in an earlier tick. Once it has
/// played all, it has `over`.
template <typename MostAhead>
std::vector<Tick> lockstep_ticks(int stages, int virtual_stages, int micro_batches,
                                 const TickStage& over, const MostAhead& most_ahead) {
  const int all = virtual_stages * micro_batches, run = stages * virtual_stages;
  std::vector<std::array<int, 2>> played(stages);  // [stage][pass] what it has played
  // [pass][virtual stage of the whole pipeline] Micro-batches that it has played, in their order.
  std::array<std::vector<int>, 2> done{std::vector<int>(run), std::vector<int>(run)};
  const auto next_of = [&](int stage) {
    const auto& [forwards, backwards] = played[stage];
    const bool is_forward = forwards < std::min(all, backwards + most_ahead(stage));
    return interleaved_work(stages, virtual_stages, is_forward ? forwards : backwards,
                            is_forward ? Pass::kForward : Pass::kBackward);
  };
  const auto has_input = [&](int stage, const TickStage& work) {
    const int at = work.virtual_stage * stages + stage;
    const auto& [forward, backward] = done;
    if (work.pass == Pass::kForward) return at == 0 || forward[at - 1] > work.micro_batch;
    return at + 1 < run ? backward[at + 1] > work.micro_batch : forward[at] > work.micro_batch;
  };
  std::vector<Tick> ticks;
  while (played[0][1] < all) {
    Tick tick;
    for (int stage = 0; stage < stages; ++stage) {
      TickStage work = played[stage][1] < all ? next_of(stage) : over;
      // Inputs must be of the ticks before this one: `done` changes behind this loop.
      if (work.micro_batch >= 0 && !has_input(stage, work)) work.micro_batch = -1;
      tick.stages.push_back(work);
    }
    for (int stage = 0; stage < stages; ++stage) {
      const TickStage& work = tick.stages[stage];
      if (work.micro_batch < 0) continue;
      ++played[stage][static_cast<size_t>(work.pass)];
      ++done[static_cast<size_t>(work.pass)][work.virtual_stage * stages + stage];
    }
    ticks.push_back(std::move(tick));
  }
  return ticks;
}

}  // namespace

std::vector<Tick> one_forward_one_backward_ticks(int stages, int micro_batches) {
  return lockstep_ticks(stages, /*virtual_stages=*/1, micro_batches, {.pass = Pass::kBackward},
                        [&](int stage) { return stages - stage; });
}

std::vector<Tick> interleaved_ticks(int stages, int virtual_stages, int micro_batches) {
  DISTCA_CHECK(stages >= 1 && virtual_stages >= 1 && micro_batches % stages == 0,
               "{} micro-batches on {} stages of {} virtual ones", micro_batches, stages,
               virtual_stages);
  return lockstep_ticks(stages, virtual_stages, micro_batches, TickStage(), [&](int stage) {
    return 2 * (stages - 1 - stage) + (virtual_stages - 1) * stages + 1;
  });
}

int most_in_flight(std::span<const Tick> ticks, int stage) {
  int now = 0, most = 0;
  for (const Tick& tick : ticks) {
    const TickStage& own = tick.stages[stage];
    if (own.micro_batch < 0) continue;
    now += own.pass == Pass::kForward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace distca
