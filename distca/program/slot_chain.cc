#include "distca/program/slot_chain.h"

namespace distca {

void SlotChain::linear() {
  const int last_layer = builder_.num_layers() - 1;
  if (nano_batch_ >= 0 && pass_ == Pass::kForward) {
    builder_.post_attention(pass_, layer_, nano_batch_);
    if (layer_ < last_layer) {
      ++layer_;
      builder_.pre_attention(pass_, layer_, nano_batch_);
      return builder_.dispatch(pass_, layer_, nano_batch_);
    }
    builder_.loss(Pass::kForward, nano_batch_);
    if (builder_.trains()) {
      pass_ = Pass::kBackward;
      builder_.loss(pass_, nano_batch_);
      builder_.post_attention(pass_, layer_, nano_batch_);
      return builder_.dispatch(pass_, layer_, nano_batch_);
    }
  } else if (nano_batch_ >= 0) {
    builder_.pre_attention(pass_, layer_, nano_batch_);
    if (layer_ > 0) {
      --layer_;
      builder_.post_attention(pass_, layer_, nano_batch_);
      return builder_.dispatch(pass_, layer_, nano_batch_);
    }
    builder_.embed(pass_, nano_batch_);
  }
  nano_batch_ = next_;
  next_ += step_;
  if (done()) return;
  pass_ = Pass::kForward;
  layer_ = 0;
  builder_.embed(pass_, nano_batch_);
  builder_.pre_attention(pass_, layer_, nano_batch_);
  builder_.dispatch(pass_, layer_, nano_batch_);
}

void SlotChain::attention(bool partial) {
  const std::vector<TaskSet> sets =
      partial ? builder_.partial_sets(nano_batch_) : std::vector<TaskSet>{TaskSet::kAll};
  const bool has_rest = sets.back() == TaskSet::kHomeRest;
  for (TaskSet set : sets) {
    if (set != TaskSet::kHomeRest) builder_.core_attention(pass_, layer_, nano_batch_, set);
  }
  builder_.combine(pass_, layer_, nano_batch_);
  // Keys of the next layer of backward: their buffer is free from here on. What leaves goes first,
  // it is waited for earlier.
  if (builder_.trains()) {
    if (pass_ == Pass::kForward && layer_ == builder_.num_layers() - 1) {
      builder_.redispatch(layer_, nano_batch_);
    } else if (pass_ == Pass::kBackward && layer_ > 0) {
      builder_.redispatch(layer_ - 1, nano_batch_);
    }
  }
  if (has_rest) builder_.core_attention(pass_, layer_, nano_batch_, TaskSet::kHomeRest);
}

}  // namespace distca
