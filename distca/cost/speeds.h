#pragma once
// How fast each rank and wire is, as recorded values: what the choice of capacities and of the
// tolerance rests on (DESIGN, data model: measured inputs enter a plan only as recorded integers,
// the same on every rank). Plain value, any thread.

#include <cstdint>
#include <vector>

#include "distca/cost/cluster.h"

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

/// Which work of a rank runs beside which (DESIGN, "schedule").
enum class Evenness {
  kAttention,  // blocking, overlap: ranks meet before and after core attention, so only it is
               // evened
  kWhole,  // ping-pong: ranks meet once a layer at the latest, so linear work and core attention
           // are evened together
};

/// Capacities that make the ranks' predicted finish even: for kAttention each server's share of the
/// load is its speed; for kWhole the time T is sought at which sum over servers of
/// max(0, T - linear time) * speed is the whole load. `tokens`: of each worker; `load`: of all
/// servers, in the unit of attention_ps_per_kload. Unknown attention speeds count as the mean of
/// the known ones, all unknown: alike; unknown linear times count as the mean of the known ones of
/// workers, all unknown: none. `in_place` false: workers get 0, unless there is no other server.
/// Sum of the result: kCapacityUnits, at least 1 for every server that gets any.
std::vector<int64_t> even_capacities(const Speeds& speeds, Evenness evenness, int num_workers,
                                     int num_servers, bool in_place, int64_t tokens, int64_t load);
inline constexpr int64_t kCapacityUnits = 10'000;

}  // namespace distca
