// One operation after another.

#include "distca/program/program_builder.h"

namespace distca {

Program build_none(const ProgramRequest& request) {
  ProgramBuilder builder(request, /*slots=*/1, ProgramBuilder::Waiting::kForThePrevious);
  for (int nano = 0; nano < builder.num_nano_batches(); ++nano) {
    builder.embed(Pass::kForward, nano);
    for (int layer = 0; layer < builder.num_layers(); ++layer) {
      builder.pre_attention(Pass::kForward, layer, nano);
      builder.dispatch(Pass::kForward, layer, nano);
      builder.core_attention(Pass::kForward, layer, nano, TaskSet::kAll);
      builder.combine(Pass::kForward, layer, nano);
      builder.post_attention(Pass::kForward, layer, nano);
    }
    builder.loss(Pass::kForward, nano);
    if (!builder.trains()) continue;
    builder.loss(Pass::kBackward, nano);
    for (int layer = builder.num_layers() - 1; layer >= 0; --layer) {
      builder.post_attention(Pass::kBackward, layer, nano);
      builder.redispatch(layer, nano);
      builder.dispatch(Pass::kBackward, layer, nano);
      builder.core_attention(Pass::kBackward, layer, nano, TaskSet::kAll);
      builder.combine(Pass::kBackward, layer, nano);
      builder.pre_attention(Pass::kBackward, layer, nano);
    }
    builder.embed(Pass::kBackward, nano);
  }
  if (builder.trains()) builder.update();
  return builder.take();
}

}  // namespace distca
