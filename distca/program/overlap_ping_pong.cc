// Two nano-batches in turn, layer by layer (paper 4.1, figure 7): what is dispatched for one
// travels under the other's core attention or linear work, what is combined likewise. Forward's end
// and backward's begin belong together as post and pre of two layers do, and so do the ends of two
// nano-batches and the begins of the next two: the pipe drains once a step, and never more than two
// nano-batches are under way. The last one of an odd number is played as `overlap` does.

#include "distca/program/slot_chain.h"

namespace distca {

Program build_ping_pong(const ProgramRequest& request) {
  ProgramBuilder builder(request, /*slots=*/2, ProgramBuilder::Waiting::kForWhatIsNeeded);
  SlotChain first(&builder, 0, 2), second(&builder, 1, 2);
  first.linear();
  second.linear();
  while (!first.done()) {
    const bool alone = second.done();
    first.attention(/*partial=*/alone);
    if (!alone) second.attention(/*partial=*/false);
    first.linear();
    if (!alone) second.linear();
  }
  if (builder.trains()) {
    builder.grad_reduce();
    builder.optimizer();
  }
  return builder.take();
}

}  // namespace distca
