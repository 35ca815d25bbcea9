// Two nano-batches in counter-phase, where the ranks of a server divide the matrices of layers: the
// islands of one, which are its linear work between two messages, stand between parts of the
// other's core attention. So a gather_rows or sum_rows runs under core attention, which can be cut
// wherever one likes. docs/program.md shows a turn.
//
// Why nobody waits in a circle, even where communications end only in the order in which they were
// started: all ranks have the communications of exchanges and stages in one order, which depends on
// no tasks. In a turn, first what is sent between stages, then the other chain's combines of
// forward, the dispatches, and the other chain's combines of backward. What goes between the ranks
// of a server stands at the same places of that order on all of them.

#include <algorithm>

#include "distca/base/error.h"
#include "distca/program/slot_chain.h"

namespace distca {
namespace {

/// Shares before the first island of backward, under which its combine travels, and behind the last
/// one, under which its dispatch does, where the other chain plays forward. In backward, the next
/// turn's first ones hide the dispatch.
constexpr int kSharesFirst = 4, kSharesLast = 4;

/// Linear work of one chain, and one layer step of the other's core attention.
class Turn {
 public:
  Turn(ProgramBuilder& builder, SlotChain& chain, SlotChain& other)
      : builder_(builder), chain_(chain), other_(other), seams_(chain.seams()) {}

  void play() {
    if (!other_.attends()) {
      chain_.linear_alone({});
      return chain_.weight_gradients();
    }
    const bool forward =
        std::ranges::any_of(other_.visits(), [](const Visit& visit) { return is_forward(visit); });
    first_ = chain_.ends_backward_layer() ? kSharesFirst : 0;
    between_ = kAttentionShares - first_ - (forward ? kSharesLast : 0);
    other_.attention_until(first_);
    builder_.set_seam([this](int rows) { seam(rows); });
    chain_.linear_alone([this] { combine_forward(); });
    builder_.set_seam({});
    DISTCA_CHECK_EQ(rows_, all_rows());
    combine_forward();
    other_.attention_until(kAttentionShares);
    other_.combine(Pass::kBackward);
    other_.end_attention();
    chain_.weight_gradients();
  }

 private:
  static bool is_forward(const Visit& visit) { return visit.pass == Pass::kForward; }
  int all_rows() const {
    return seams_.end_layer + seams_.end_visit + seams_.begin_visit + seams_.start_layer;
  }

  /// So many of the turn's rows have just begun to travel, under as large a part of the shares. The
  /// last ones of a started layer are those before the island with a dispatch.
  void seam(int rows) {
    rows_ += rows;
    if (rows_ == all_rows() && seams_.start_layer > 0) combine_forward();
    other_.attention_until(first_ + between_ * rows_ / all_rows());
  }

  void combine_forward() {
    if (is_combined_) return;
    is_combined_ = true;
    if (std::ranges::none_of(other_.visits(), is_forward)) return;
    other_.attention_until(kSharesBeforeCombine);
    other_.combine(Pass::kForward);
  }

  ProgramBuilder& builder_;
  SlotChain& chain_;
  SlotChain& other_;
  const ProgramBuilder::Seams seams_;
  int first_ = 0, between_ = 0;  // shares
  int rows_ = 0;                 // that have begun to travel, as seams count them
  bool is_combined_ = false;     // forward of the other chain is
};

}  // namespace

Program build_counter_phase(const ProgramRequest& request) {
  ProgramBuilder builder(request, /*slots=*/2, ProgramBuilder::Waiting::kForWhatIsNeeded);
  SlotChain first(&builder, 0), second(&builder, 1);
  first.linear();
  while (!first.done() || !second.done()) {
    if (second.done()) {
      first.play_alone();
    } else if (first.done()) {
      second.play_alone();
    } else {
      Turn(builder, second, first).play();
      Turn(builder, first, second).play();
    }
  }
  return builder.take();
}

}  // namespace distca
