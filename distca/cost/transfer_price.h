#pragma once
// What a message costs on the wire. Integers only, so that every rank computes the same plan. Any
// thread. Which link joins two ranks, inside a node or between nodes: Cluster::link (cluster.h).

#include <cstdint>

namespace distca {

/// One direction between two ranks, alone on the wire.
struct Link {
  int64_t latency_ns = 20'000;    // of one message, however small
  int64_t bytes_per_us = 50'000;  // > 0; 400 Gb/s InfiniBand (paper, Appendix A)
  bool operator==(const Link&) const = default;
};

/// Longest time that transfer_ns gives: longer ones are cut to this.
inline constexpr int64_t kMostTransferNs = int64_t{1} << 60;

/// Nanoseconds for `messages` messages of `bytes` bytes in all, one after another.
/// Counts: a latency a message, bytes / bandwidth, rounded up. Ignores: other messages on the same
/// wire, packing and unpacking.
int64_t transfer_ns(const Link& link, int64_t messages, int64_t bytes);

}  // namespace distca
