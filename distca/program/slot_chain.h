#pragma once
// The nano-batches that share a slot, one after another, in turns of linear work and core
// attention: what `overlap` and `ping-pong` are made of. Thread rule: one thread.

#include "distca/program/program_builder.h"

namespace distca {

class SlotChain {
 public:
  /// Nano-batches first, first + step, ...
  SlotChain(ProgramBuilder* builder, int first, int step)
      : builder_(*builder), next_(first), step_(step) {}

  /// No core attention is left.
  bool done() const { return nano_batch_ >= builder_.num_nano_batches(); }
  /// All linear work up to the next dispatch, and that dispatch. Without a wait between
  /// them: post of a layer and pre of the next, forward's end and backward's begin, a nano-batch's
  /// end and the begin of the next.
  void linear();
  /// One layer's core attention, and its combine; `partial`: in parts, so that
  /// exchanges hide under the tasks at home.
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
