#include "bench/exchange_windows.h"

#include <algorithm>

namespace distca::bench {
namespace {

bool is_exchange(const Op& op) { return op.stream == Stream::kComm; }

bool has_messages(const Program& program, const Op& op) {
  return !program.sends(op).empty() || !program.receives(op).empty();
}

/// Post-attention of a layer and pre-attention of the next one, of one nano-batch.
bool are_fused(const Op& first, const Op& second) {
  const bool forward = first.kind == OpKind::kPostAttention && second.kind == OpKind::kPreAttention;
  const bool backward =
      first.kind == OpKind::kPreAttention && second.kind == OpKind::kPostAttention;
  return first.nano_batch == second.nano_batch && first.pass == second.pass &&
         (first.pass == distca::Pass::kForward ? forward : backward);
}

ExchangeWindow window_of(const Program& program, size_t at, const OpSeconds& seconds) {
  const auto seconds_of = [&](const Op& op) {
    return seconds[static_cast<size_t>(op.kind)][static_cast<size_t>(op.pass)];
  };
  const Op& exchange = program.ops[at];
  ExchangeWindow window{
      .kind = exchange.kind, .pass = exchange.pass, .exchange_s = seconds_of(exchange)};
  const Op* previous = nullptr;
  double operation_s = 0;
  for (size_t i = at + 1; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (std::ranges::count(op.wait_for, static_cast<int32_t>(at)) > 0) break;
    if (is_exchange(op)) continue;
    if (previous == nullptr) window.under_attention = op.kind == OpKind::kCoreAttention;
    window.under_s += seconds_of(op);
    operation_s =
        seconds_of(op) + (previous != nullptr && are_fused(*previous, op) ? operation_s : 0);
    window.longest_s = std::max(window.longest_s, operation_s);
    previous = &op;
  }
  return window;
}

/// The two extremes among the exchanges of one kind under one kind of operation.
struct Extremes {
  ExchangeWindow most;   // share()
  ExchangeWindow least;  // over_longest()

  bool holds(const ExchangeWindow& window) const {
    return most.kind == window.kind && most.pass == window.pass &&
           most.under_attention == window.under_attention;
  }
  void add(const ExchangeWindow& window) {
    if (window.share() > most.share()) most = window;
    if (window.over_longest() < least.over_longest()) least = window;
  }
};

}  // namespace

std::vector<ExchangeWindow> exchange_windows(const Program& program, const OpSeconds& seconds) {
  int last_layer = 0;
  for (const Op& op : program.ops) last_layer = std::max(last_layer, op.layer);
  std::vector<Extremes> kinds;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (!is_exchange(op) || !has_messages(program, op) || op.layer == 0 || op.layer == last_layer)
      continue;
    const ExchangeWindow window = window_of(program, i, seconds);
    const auto known =
        std::ranges::find_if(kinds, [&](const Extremes& kind) { return kind.holds(window); });
    if (known == kinds.end()) {
      kinds.push_back({.most = window, .least = window});
    } else {
      known->add(window);
    }
  }
  std::vector<ExchangeWindow> windows;
  for (const Extremes& kind : kinds) {
    windows.push_back(kind.most);
    if (kind.least != kind.most) windows.push_back(kind.least);
  }
  return windows;
}

}  // namespace distca::bench
