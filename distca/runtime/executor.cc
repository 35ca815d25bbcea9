#include "distca/runtime/executor.h"

#include "distca/base/clock.h"

namespace distca {

void play(const Program& program, OpPlayer& player, OpTimes* times) {
  for (const Op& op : program.ops) {
    const Stopwatch watch;
    player.play(op);
    times->seconds[int(op.kind)][int(op.pass)] += watch.seconds();
  }
}

}  // namespace distca
