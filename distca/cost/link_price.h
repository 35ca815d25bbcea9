#pragma once
// The price of bytes between two ranks: how long messages take on a link, and what a byte costs
// against work where the planner weighs one against the other. All figures are integers, so that
// every rank computes the same plan. Any thread may call the functions.

#include <cstdint>

namespace distca {

/// One direction between two ranks, with nothing else on the wire.
struct Link {
  int64_t latency_ns = 20'000;    // latency of each message, however small
  int64_t bytes_per_us = 50'000;  // > 0; 400 Gb/s InfiniBand (paper, Appendix A)
  bool operator==(const Link&) const = default;
};

/// The longest time that transfer_ns returns. Longer times are cut to it.
inline constexpr int64_t kMostTransferNs = int64_t{1} << 60;

/// Nanoseconds for `messages` messages that have `bytes` bytes in all and are sent one after
/// another.
/// Counts: a latency for each message, and bytes / bandwidth, rounded up. Ignores: other messages
/// on the same wire, packing and unpacking.
int64_t transfer_ns(const Link& link, int64_t messages, int64_t bytes);

/// The price of a byte in picoseconds. It is at least 1, so that no byte is free.
int64_t byte_price(const Link& link);

/// How many times faster links inside a node are: NVLink has 450 GB/s, InfiniBand has 50 GB/s.
inline constexpr int64_t kInsideOverBetween = 9;

}  // namespace distca
