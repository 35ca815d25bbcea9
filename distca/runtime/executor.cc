#include "distca/runtime/executor.h"

#include "distca/base/clock.h"

namespace distca {

void play(const Program& program, OpPlayer& player, OpTimes* times) {
  for (const Op& op : program.ops) {
    const Stopwatch watch;
    const double processor_start = thread_processor_seconds();
    player.play(op);
    times->processor_seconds[int(op.kind)][int(op.pass)] +=
        thread_processor_seconds() - processor_start;
    times->seconds[int(op.kind)][int(op.pass)] += watch.seconds();
  }
}

}  // namespace distca
