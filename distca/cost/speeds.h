#pragma once
// How fast each rank and the wire are, as recorded values. Capacities and the tolerance are chosen
// by them (DESIGN, data model: measured inputs enter a plan only as recorded integers, the same on
// every rank).
//
//   const Speeds speeds = assumed_speeds(model, /*num_servers=*/4);  // ModelShape model
//   const std::vector<RankWork> work = work_of_step(speeds, 4, 4, /*in_place=*/true, tokens);
//   const std::vector<int64_t> capacity = even_capacities(work, BalanceTarget::kWhole, load);
//
// Any thread may call the functions; the types are plain values.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/cost/attention_profile.h"
#include "distca/cost/memory_price.h"

namespace distca {

/// One rank's elapsed time for forward and backward of all layers together.
struct RankSpeed {
  /// Linear work, which is everything but core attention and exchange, for each token at home. 0
  /// means unknown, or a rank without weights.
  int64_t linear_ps_per_token = 0;
  /// Core attention, for a thousand units of load (pairs, or ns of the profile). 0 means unknown.
  int64_t attention_ps_per_kload = 0;
  bool operator==(const RankSpeed&) const = default;
};

struct Speeds {
  int64_t from_step = 0;         // the first step whose plan uses them
  std::vector<RankSpeed> ranks;  // [num_servers]; empty if unknown, which counts as all alike
  int64_t bytes_per_us = 0;      // bandwidth of a rank while others send too; 0 if unknown
  bool operator==(const Speeds&) const = default;
};

/// The speeds that are assumed where nothing was measured, for `num_servers` ranks that are alike.
/// With a profile, attention takes the profile's times (the unit of load is then ns), and linear
/// work runs at the rate of the profile's longest task. Without a profile, both run at
/// kAssumedTflops (bf16 on one H200), and load is in pairs. The bandwidth is unknown.
/// Counts: multiply-adds of the layers' matrix products and of core attention; backward is 2 and
/// 2.5 times forward, and computes `products_again` of each layer's products again
/// (cost/stage_layers.h). Ignores: embedding, head and loss, norms, memory.
Speeds assumed_speeds(const ModelShape& layers, int num_servers,
                      const AttentionProfile* profile = nullptr, int64_t products_again = 0);
inline constexpr int64_t kAssumedTflops = 300;

/// Fills the gaps of measured speeds. A rank whose speed is unknown gets the mean of the known
/// ones. If attention or the linear work is unknown for all ranks, all ranks get `stated` speeds,
/// which are given for all servers.
Speeds fill_in_speeds(const Speeds& measured, const Speeds& stated);

/// The work of a rank that is evened out over the ranks. It follows from the overlap mode
/// (docs/program.md).
enum class BalanceTarget {
  /// For none and within: ranks meet before and after core attention, so it alone is evened out.
  kAttention,
  /// For ping-pong: ranks may be up to a layer apart before they meet, so linear work and core
  /// attention are evened out together.
  kWhole,
};

/// The work of one rank in the time that is evened out. That is a whole step, or, where ranks
/// differ in the layers that they have, one pass of some of its nano-batches.
struct RankWork {
  /// Tokens at home in that time. 0 means a dedicated server, or a rank without a nano-batch.
  int64_t tokens = 0;
  int64_t layers_ps_per_token = 0;     // linear work of the rank's layers; 0 if unknown
  int64_t ends_ps_per_token = 0;       // embedding, head and loss, on ranks that have them
  int64_t other_ps = 0;                // linear work for other tokens than these
  int64_t attention_ps_per_kload = 0;  // for a thousand units of load; 0 if unknown
  bool serves = true;                  // false if it gets no load
};

/// The work of a step in which every worker holds `tokens`, forward and backward together. The
/// linear work of `speeds` includes the embedding and the head. If `in_place` is false, workers do
/// not serve, unless there is no other server.
std::vector<RankWork> work_of_step(const Speeds& speeds, int num_workers, int num_servers,
                                   bool in_place, int64_t tokens);

/// Capacities with which all ranks are predicted to finish together. With kAttention, each server's
/// share of the load is its speed. With kWhole, a time T is sought at which the sum over servers of
/// max(0, T - linear time) * speed is the whole load. `load` is that of all servers, in the unit of
/// attention_ps_per_kload. At least one rank must serve (CHECK).
/// An unknown attention speed counts as the mean of the known ones; if all are unknown, ranks are
/// alike. An unknown time of layers counts as the mean of the known ones of ranks with tokens; if
/// all are unknown, it counts as 0. If all attention speeds are unknown, or there is no load,
/// linear work does not count.
/// Capacities are rounded to whole units, of which the largest has kCapacityUnits, and are then
/// reduced to lowest terms, so each is 1 where all are alike. Every server that gets any load has
/// at least 1. A server that is too slow to finish its linear work by then gets 0. All arithmetic
/// is in integers, times are in whole picoseconds.
std::vector<int64_t> even_capacities(std::span<const RankWork> ranks, BalanceTarget balance_target,
                                     int64_t load);
inline constexpr int64_t kCapacityUnits = 10'000;

}  // namespace distca
