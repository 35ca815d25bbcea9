#pragma once
// A slot chain plays the visits of a slot (visit.h), one after another. It takes turns between
// linear work and core attention, so that another chain can be played in between. The overlap modes
// within and ping-pong are made of slot chains.
//
//   SlotChain chain(&builder, /*slot=*/0);  // ProgramBuilder builder
//   chain.linear();
//   while (!chain.done()) chain.play_alone();
//
// A chain belongs to one thread.

#include <cstddef>
#include <functional>
#include <span>

#include "distca/program/program_builder.h"

namespace distca {

class SlotChain {
 public:
  /// Borrows the builder.
  SlotChain(ProgramBuilder* builder, int slot) : builder_(*builder), slot_(slot) {}

  /// Returns true if no core attention is left.
  bool done() const { return first_ == builder_.visits(slot_).size(); }
  /// Appends all linear work up to the next dispatch, that dispatch, and weight gradients, under
  /// which it travels: in a tick in which a rank only serves, it would wait for the first one. No
  /// operation waits between the post_attention of a layer and the pre_attention of the next,
  /// between the end of forward and the start of backward, or between the end of a visit and the
  /// start of the next. A visit that starts late is left to begin().
  void linear();
  /// Appends the start of a visit that linear() has left, if it has.
  void begin();
  /// Appends the core attention of one layer step, and its combine. With `partial`, core attention
  /// comes in parts, so that exchanges run under the tasks at home.
  void attention(bool partial);
  /// Appends a layer step of a chain that has no partner, and what linear() and begin() would.
  void play_alone();

  // Counter-phase plays core attention of one chain within the linear work of another.

  /// Returns true if core attention is due: a dispatch has begun.
  bool attends() const { return attends_; }
  /// The visits under way, which are played together.
  std::span<const Visit> visits() const { return builder_.beside(slot_, first_); }
  /// Returns true if the linear work due has the end of a layer of backward first.
  bool ends_backward_layer() const;
  /// The seams of the linear work that is due (ProgramBuilder::seams).
  ProgramBuilder::Seams seams() const;
  /// Appends the linear work that is due, whether linear() or begin() would, and its dispatch, but
  /// no weight gradients. `before_dispatch` is called where it says.
  void linear_alone(const std::function<void()>& before_dispatch);
  void weight_gradients();
  /// Appends the first `shares` of a layer step's core attention, less what was appended before.
  void attention_until(int shares);
  /// Appends the combine of visits of this pass, whose tasks it has to wait for are there.
  void combine(Pass pass);
  /// Ends core attention: keys that are sent again for the next layer follow.
  void end_attention();

 private:
  void linear_work();
  void begin_visits();
  void next_visits();
  void start_layer();
  void redispatch_next();

  ProgramBuilder& builder_;
  int slot_;
  size_t first_ = 0;      // index of the first of the visits under way
  int turn_ = -1;         // turn of their layer steps. -1 means that they have not begun.
  bool attends_ = false;  // since the last dispatch
  bool is_left_ = false;  // the start of a visit is, to begin()
  int shares_ = 0;        // appended by attention_until()
  std::function<void()> before_dispatch_;
};

}  // namespace distca
