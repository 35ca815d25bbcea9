#pragma once
// The operations that each exchange of a program runs under: those that are played between its
// start and the first operation that waits for it. Plain values, any thread.

#include <array>
#include <cstdint>
#include <vector>

#include "distca/program/program.h"

namespace distca::bench {

/// Seconds of one operation, [kind][pass]: of a compute operation to compute, of an exchange alone
/// on the wire.
using OpSeconds = std::array<std::array<double, 2>, kNumOpKinds>;

/// An exchange compared with the operations that it runs under.
struct ExchangeWindow {
  OpKind kind = OpKind::kDispatch;
  distca::Pass pass = distca::Pass::kForward;
  bool under_attention = false;  // it runs under core attention first; else under linear work
  double exchange_s = 0;
  double under_s = 0;    // all operations that it runs under
  double longest_s = 0;  // the longest of them; one layer's post-attention and the next one's
                         // pre-attention are one operation
  double share() const { return exchange_s / under_s; }
  double over_longest() const { return exchange_s / longest_s; }
  friend bool operator==(const ExchangeWindow&, const ExchangeWindow&) = default;
};

/// Returns, of the exchanges of one kind that run under the same kind of operation, the two that a
/// bar may fail by: the one of the largest share() and, if that is another, the one of the smallest
/// over_longest(). The first and the last layer do not count, because there the pipeline of
/// exchanges fills and drains, nor do exchanges without messages. The kinds are in the order in
/// which they are played first.
std::vector<ExchangeWindow> exchange_windows(const Program& program, const OpSeconds& seconds);

}  // namespace distca::bench
