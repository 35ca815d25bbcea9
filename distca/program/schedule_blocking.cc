// One operation after another.

#include "distca/program/program_builder.h"

namespace distca {

Program build_blocking(const ProgramRequest& request) {
  ProgramBuilder builder(request, /*slots=*/1, ProgramBuilder::Waiting::kForThePrevious);
  for (int nano = 0; nano < builder.num_nano_batches(); ++nano) {
    builder.embed(Pass::kForward, nano);
    for (int layer = 0; layer < builder.num_layers(); ++layer) {
      builder.pre(Pass::kForward, layer, nano);
      builder.enter(Pass::kForward, layer, nano);
      builder.attend(Pass::kForward, layer, nano, TaskSet::kAll);
      builder.leave(Pass::kForward, layer, nano);
      builder.post(Pass::kForward, layer, nano);
    }
    builder.loss(Pass::kForward, nano);
    if (!builder.trains()) continue;
    builder.loss(Pass::kBackward, nano);
    for (int layer = builder.num_layers() - 1; layer >= 0; --layer) {
      builder.post(Pass::kBackward, layer, nano);
      builder.resend(layer, nano);
      builder.enter(Pass::kBackward, layer, nano);
      builder.attend(Pass::kBackward, layer, nano, TaskSet::kAll);
      builder.leave(Pass::kBackward, layer, nano);
      builder.pre(Pass::kBackward, layer, nano);
    }
    builder.embed(Pass::kBackward, nano);
  }
  if (builder.trains()) {
    builder.gradient_sum();
    builder.optimizer();
  }
  return builder.take();
}

}  // namespace distca
