#include "distca/program/slot_chain.h"

namespace distca {

void SlotChain::linear() {
  if (turn_ >= 0) {
    for (const Visit& visit : visits()) builder_.end_layer(visit, turn_);
    if (turn_ + 1 < builder_.layer_steps(visits().front())) {
      ++turn_;
      return start_layer();
    }
    for (const Visit& visit : visits()) builder_.end_visit(visit);
    next_visits();
  }
  // Visits in which this rank neither works nor serves.
  while (!done() && builder_.layer_steps(visits().front()) == 0) {
    builder_.end_visit(visits().front());
    builder_.weight_gradients(visits().front(), 0);
    next_visits();
  }
  if (!done() && !visits().front().starts_late) begin();
}

void SlotChain::begin() {
  if (done() || turn_ >= 0) return;
  for (const Visit& visit : visits()) builder_.begin_visit(visit);
  turn_ = 0;
  start_layer();
}

void SlotChain::next_visits() {
  first_ += visits().size();
  turn_ = -1;
}

void SlotChain::start_layer() {
  for (const Visit& visit : visits()) builder_.start_layer(visit, turn_);
  for (const Visit& visit : visits()) builder_.dispatch(visit, builder_.layer_step(visit, turn_));
  for (const Visit& visit : visits()) builder_.weight_gradients(visit, turn_);
}

void SlotChain::attention(bool partial) {
  const auto for_each_set = [&](const Visit& visit, bool rest) {
    const int step = builder_.layer_step(visit, turn_);
    for (const TaskSet set : builder_.task_sets(visit, partial)) {
      if ((set == TaskSet::kHomeRest) == rest) builder_.core_attention(visit, step, set);
    }
  };
  for (const Visit& visit : visits()) {
    for_each_set(visit, /*rest=*/false);
    builder_.combine(visit, builder_.layer_step(visit, turn_));
  }
  // Keys of the next layer of backward: their buffer is free from here on. What leaves goes first,
  // it is waited for earlier.
  if (turn_ + 1 < builder_.layer_steps(visits().front())) {
    for (const Visit& visit : visits())
      builder_.redispatch(visit, builder_.layer_step(visit, turn_ + 1));
  } else {
    size_t next = first_ + visits().size();
    while (next < builder_.visits(slot_).size() &&
           builder_.layer_steps(builder_.visits(slot_)[next]) == 0)
      ++next;
    for (const Visit& visit : builder_.beside(slot_, next))
      builder_.redispatch(visit, builder_.layer_step(visit, 0));
  }
  for (const Visit& visit : visits()) for_each_set(visit, /*rest=*/true);
}

}  // namespace distca
