#include "distca/program/slot_chain.h"

#include <algorithm>
#include <utility>

namespace distca {

void SlotChain::linear() {
  linear_work();
  if (attends_) weight_gradients();
}

void SlotChain::begin() {
  if (!is_left_) return;
  begin_visits();
  weight_gradients();
}

void SlotChain::linear_alone(const std::function<void()>& before_dispatch) {
  before_dispatch_ = before_dispatch;
  is_left_ ? begin_visits() : linear_work();
  before_dispatch_ = {};
}

void SlotChain::linear_work() {
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
  is_left_ = !done();
  if (is_left_ && !visits().front().starts_late) begin_visits();
}

void SlotChain::begin_visits() {
  is_left_ = false;
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
  if (before_dispatch_) before_dispatch_();
  for (const Visit& visit : visits()) builder_.dispatch(visit, turn_);
  attends_ = true;
  shares_ = 0;
}

void SlotChain::weight_gradients() {
  for (const Visit& visit : visits()) builder_.weight_gradients(visit, turn_);
}

void SlotChain::attention(bool partial) {
  const auto for_each_set = [&](const Visit& visit, bool rest) {
    for (const TaskSet set : builder_.task_sets(visit, partial)) {
      if ((set == TaskSet::kHomeRest) == rest) builder_.core_attention(visit, turn_, set);
    }
  };
  for (const Visit& visit : visits()) {
    for_each_set(visit, /*rest=*/false);
    builder_.combine(visit, turn_);
  }
  // It goes first, since it is waited for earlier.
  redispatch_next();
  for (const Visit& visit : visits()) for_each_set(visit, /*rest=*/true);
  attends_ = false;
}

void SlotChain::play_alone() {
  if (attends_) attention(/*partial=*/true);
  linear();
  begin();
}

/// Keys of the next layer of backward: their buffer is free from here on.
void SlotChain::redispatch_next() {
  if (turn_ + 1 < builder_.layer_steps(visits().front())) {
    for (const Visit& visit : visits()) builder_.redispatch(visit, turn_ + 1);
    return;
  }
  size_t next = first_ + visits().size();
  while (next < builder_.visits(slot_).size() &&
         builder_.layer_steps(builder_.visits(slot_)[next]) == 0)
    ++next;
  for (const Visit& visit : builder_.beside(slot_, next)) builder_.redispatch(visit, 0);
}

bool SlotChain::ends_backward_layer() const {
  return turn_ >= 0 && std::ranges::any_of(visits(), [&](const Visit& visit) {
           return visit.pass == Pass::kBackward && builder_.seams(visit).end_layer > 0;
         });
}

/// In the order of linear_work().
ProgramBuilder::Seams SlotChain::seams() const {
  using Seams = ProgramBuilder::Seams;
  Seams seams;
  const auto add = [&](std::span<const Visit> visits, int Seams::*part) {
    for (const Visit& visit : visits) seams.*part += builder_.seams(visit).*part;
  };
  size_t next = first_;
  if (turn_ >= 0) {
    add(visits(), &Seams::end_layer);
    if (turn_ + 1 < builder_.layer_steps(visits().front())) {
      add(visits(), &Seams::start_layer);
      return seams;
    }
    add(visits(), &Seams::end_visit);
    next += visits().size();
  }
  const std::vector<Visit>& all = builder_.visits(slot_);
  for (; next < all.size() && builder_.layer_steps(all[next]) == 0; ++next)
    add({&all[next], 1}, &Seams::end_visit);
  if (next == all.size() || (all[next].starts_late && !is_left_)) return seams;
  add(builder_.beside(slot_, next), &Seams::begin_visit);
  add(builder_.beside(slot_, next), &Seams::start_layer);
  return seams;
}

void SlotChain::attention_until(int shares) {
  if (shares <= shares_) return;
  for (const Visit& visit : visits()) builder_.core_attention(visit, turn_, Range{shares_, shares});
  shares_ = shares;
}

void SlotChain::combine(Pass pass) {
  for (const Visit& visit : visits()) {
    if (visit.pass == pass) builder_.combine(visit, turn_);
  }
}

void SlotChain::end_attention() {
  redispatch_next();
  attends_ = false;
}

}  // namespace distca
