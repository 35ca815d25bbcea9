#pragma once
// A slot chain plays the nano-batches that share a slot, one after another. It takes turns between
// linear work and core attention, so that another chain can be played in between. The overlap modes
// within and ping-pong are made of slot chains.
//
//   SlotChain chain(&builder, /*first=*/0, /*step=*/1);  // ProgramBuilder builder
//   chain.linear();
//   while (!chain.done()) {
//     chain.attention(/*partial=*/true);
//     chain.linear();
//   }
//
// A chain belongs to one thread.

#include "distca/program/program_builder.h"

namespace distca {

class SlotChain {
 public:
  /// Borrows the builder. The chain plays nano-batches first, first + step, ...
  SlotChain(ProgramBuilder* builder, int first, int step)
      : builder_(*builder), next_(first), step_(step) {}

  /// Whether no core attention is left.
  bool done() const { return nano_batch_ >= builder_.num_nano_batches(); }
  /// Appends all linear work up to the next dispatch, and that dispatch. No operation waits between
  /// the post_attention of a layer and the pre_attention of the next, between the end of forward
  /// and the start of backward, or between the end of a nano-batch and the start of the next.
  void linear();
  /// Appends the core attention of one layer, and its combine. With `partial`, core attention comes
  /// in parts, so that exchanges run under the tasks at home.
  void attention(bool partial);

 private:
  ProgramBuilder& builder_;
  int next_;
  int step_;
  int nano_batch_ = -1;  // -1: before the first
  Pass pass_ = Pass::kForward;
  int layer_ = 0;
};

}  // namespace distca
