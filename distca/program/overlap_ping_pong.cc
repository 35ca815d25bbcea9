// Two nano-batches in turn, layer by layer (paper 4.1, figure 7). What is dispatched or combined
// for one of them travels under the other's core attention or linear work. The end of forward and
// the beginning of backward belong together, as a layer's post_attention and the next layer's
// pre_attention do; so do the ends of two nano-batches and the beginnings of the next two. So the
// pipe drains once a step, and never more than two nano-batches are under way. The last one of an
// odd number is played as `within` does. What a stage of a pipeline begins with right after another
// one has sent it travels under the other slot's end of a visit. Where ranks divide the matrices of
// layers, this order would wait for each of their messages at once: counter-phase takes its place.

#include "distca/program/slot_chain.h"

namespace distca {

Program build_in_turn(const ProgramRequest& request) {
  ProgramBuilder builder(request, /*slots=*/2, ProgramBuilder::Waiting::kForWhatIsNeeded);
  SlotChain first(&builder, 0), second(&builder, 1);
  first.linear();
  second.linear();
  while (!first.done()) {
    const bool alone = second.done();
    first.attention(/*partial=*/alone);
    if (!alone) second.attention(/*partial=*/false);
    first.linear();
    if (!alone) second.linear();
    first.begin();
    if (!alone) second.begin();
  }
  return builder.take();
}

}  // namespace distca
