// One nano-batch at a time: Q, K, V travel under the first half of the tasks at home, what is
// combined under the rest. Keys that are sent again travel under all that lies between two layers'
// tasks.

#include "distca/program/slot_chain.h"

namespace distca {

Program build_within(const ProgramRequest& request) {
  ProgramBuilder builder(request, /*slots=*/1, ProgramBuilder::Waiting::kForWhatIsNeeded);
  SlotChain chain(&builder, 0);
  chain.linear();
  while (!chain.done()) chain.play_alone();
  return builder.take();
}

}  // namespace distca
