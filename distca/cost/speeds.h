#pragma once
// How fast each rank and wire is, as recorded values: what the choice of capacities and of the
// tolerance rests on (DESIGN, data model: measured inputs enter a plan only as recorded integers,
// the same on every rank). Plain value, any thread.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/cost/attention_profile.h"
#include "distca/cost/memory_price.h"

namespace distca {

/// Elapsed time, forward and backward together, of all layers.
struct RankSpeed {
  int64_t linear_ps_per_token = 0;  // everything but core attention and exchange, a home token; 0:
                                    // unknown, or a rank without weights
  int64_t attention_ps_per_kload = 0;  // core attention, a thousand units of load (pairs, or ns of
                                       // the profile); 0: unknown
  bool operator==(const RankSpeed&) const = default;
};

struct Speeds {
  int64_t from_step = 0;         // the first step whose plan uses them
  std::vector<RankSpeed> ranks;  // [num_servers]; empty: unknown, all alike
  int64_t bytes_per_us = 0;      // one rank's sends while others send too; 0: unknown
  bool operator==(const Speeds&) const = default;
};

/// What is taken where nothing was measured, of `num_servers` ranks that are alike: with a profile
/// attention at its times (the unit of load is then ns) and linear work at the rate of its longest
/// task; without, both at kStatedTflops (bf16 on one H200) and load in pairs. Bandwidth unknown.
/// Counts: multiply-adds of the layers' matrix products and of core attention, backward 2 and 2.5
/// times forward. Ignores: embedding, head and loss, norms, memory.
Speeds stated_speeds(const ModelShape& layers, int num_servers,
                     const AttentionProfile* profile = nullptr);
inline constexpr int64_t kStatedTflops = 300;

/// Measured speeds without gaps: ranks that are unknown are taken for the mean of the known ones;
/// where attention or workers' linear work is unknown of all, all speeds are the stated ones.
/// `stated`: of all servers.
Speeds known_speeds(const Speeds& measured, const Speeds& stated);

/// Which work of a rank runs beside which (DESIGN, "schedule").
enum class Evenness {
  kAttention,  // blocking, overlap: ranks meet before and after core attention, so only it is
               // evened
  kWhole,  // ping-pong: ranks meet once a layer at the latest, so linear work and core attention
           // are evened together
};

/// What one rank does in the time that is evened out: a whole step, or one pass of some of its
/// nano-batches, where ranks differ in the layers that they have.
struct RankWork {
  int64_t tokens =
      0;  // at home in that time; 0: a dedicated server, or a rank without a nano-batch
  int64_t layers_ps_per_token = 0;     // linear work of the rank's layers; 0: unknown
  int64_t ends_ps_per_token = 0;       // embedding, head and loss, on ranks that have them
  int64_t attention_ps_per_kload = 0;  // a thousand units of load; 0: unknown
  bool serves = true;                  // false: gets no load
};

/// Of a step in which every worker holds `tokens`, forward and backward together; the speeds'
/// linear work has the embedding and the head in it. `in_place` false: workers do not serve, unless
/// there is no other server.
std::vector<RankWork> work_of_step(const Speeds& speeds, int num_workers, int num_servers,
                                   bool in_place, int64_t tokens);

/// Capacities that make the ranks' predicted finish even: for kAttention each server's share of the
/// load is its speed; for kWhole the time T is sought at which sum over servers of
/// max(0, T - linear time) * speed is the whole load. `load`: of all servers, in the unit of
/// attention_ps_per_kload. Unknown attention speeds count as the mean of the known ones, all
/// unknown: alike; unknown times of layers count as the mean of the known ones of ranks with
/// tokens, all unknown: none; where all attention speeds are unknown or there is no load, linear
/// work does not count. At least one rank serves.
/// The result is in lowest terms (all alike: 1 each), at most kCapacityUnits, to within half a unit
/// of the largest being kCapacityUnits, and at least 1 for every server that gets any. A server too
/// slow to finish its linear work by then gets 0. Integers throughout, times in whole picoseconds.
std::vector<int64_t> even_capacities(std::span<const RankWork> ranks, Evenness evenness,
                                     int64_t load);
inline constexpr int64_t kCapacityUnits = 10'000;

}  // namespace distca
