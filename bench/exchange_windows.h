#pragma once
// What each exchange of a program runs under: the operations that are played between its start and
// the first operation that waits for it. Plain values, any thread.

#include <array>
#include <cstdint>
#include <vector>

#include "distca/program/program.h"

namespace distca::bench {

/// Seconds of one operation, [kind][pass]: of a compute operation to compute, of an exchange alone
/// on the wire.
using OpSeconds = std::array<std::array<double, 2>, kNumOpKinds>;

/// Of the exchanges of one kind that run under the same kind of operation, the one that is longest
/// beside it.
struct ExchangeWindow {
  OpKind kind = OpKind::kEnter;
  distca::Pass pass = distca::Pass::kForward;
  bool under_attend = false;  // it runs under core attention first; else under linear work
  double exchange_s = 0;
  double under_s = 0;    // of all operations that it runs under
  double longest_s = 0;  // of the longest of them; one layer's post-attention and the next one's
                         // pre-attention are one operation
  double share() const { return exchange_s / under_s; }
};

/// The largest share of each kind with messages, of layers that are neither the first nor
/// the last: there the pipeline of exchanges fills and drains. In the order in which they are
/// played first.
std::vector<ExchangeWindow> exchange_windows(const Program& program, const OpSeconds& seconds);

/// How many operations of each kind and pass.
std::array<std::array<int, 2>, kNumOpKinds> count_ops(const Program& program);

}  // namespace distca::bench
