#pragma once
// When ranks are done with linear work and core attention if attention may be computed anywhere for
// nothing, and how much attention fits into a given time (speeds.h explains the words).
//
//   const std::vector<RankWork> work = ...;                     // of each rank
//   const int64_t ps = least_ps(work, BalanceTarget::kWhole, load);
//   const int64_t more = load_within(work, BalanceTarget::kWhole, ps + ps / 50);  // in 2 % more
//   time
//
// With kWhole a rank has its linear work and then its attention. With kAttention all ranks begin
// attention when the last one is done with its linear work. Times are in picoseconds, loads in the
// unit of attention_ps_per_kload. All speeds of attention must be known (CHECK); unknown linear
// work counts as none. Results have the same bits on every machine. Any thread may call the
// functions.

#include <cstdint>
#include <span>

#include "distca/cost/speeds.h"

namespace distca {

/// The least time in which the ranks can do all of it. At least one rank must serve (CHECK). If n
/// of P equal ranks have linear work l and attention takes A on one rank, it is max(l, (n l + A) /
/// P) with kWhole, and l + A / P with kAttention.
int64_t least_ps(std::span<const RankWork> ranks, BalanceTarget balance_target, int64_t load);

/// The load that all ranks together can do within this time, rounded down. 0 if linear work alone
/// takes longer.
int64_t load_within(std::span<const RankWork> ranks, BalanceTarget balance_target, int64_t ps);

/// A rank's time for its linear work, and for this load.
double linear_ps(const RankWork& work);
double attention_ps(const RankWork& work, int64_t load);

}  // namespace distca
