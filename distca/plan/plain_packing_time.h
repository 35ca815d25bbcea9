#pragma once
// The time that unevenness cost in a step, and the time that the step would have taken under plain
// packing (plan.scheduler = local). Both follow from what the ranks measured in the step. Any
// thread may call the functions.
//
//   const PackedWork packed = packed_work(plans, profile, /*together=*/1);
//   const double longer_s = plain_packing_adds_s(ranks, packed);  // std::vector<RankSample> ranks

#include <memory>
#include <span>
#include <vector>

#include "distca/cost/speed_meter.h"
#include "distca/plan/plan.h"

namespace distca {

/// [nano-batches, or pairs that are played together][workers] Tokens and load that a worker would
/// have. There are no times in these samples.
using PackedWork = std::vector<std::vector<RankSample>>;

/// Returns the tokens and the load that the workers would have if scheduler `local` had planned the
/// nano-batches of `plans`. Load is that of one layer, in ns with a profile and else in pairs.
/// `together` says how many nano-batches are under way at the same time: 2 under ping-pong, else 1.
/// Empty where there is one worker, where there are dedicated servers, of which plain packing has
/// none, and without plans (a pipeline).
PackedWork packed_work(std::span<const Plan> plans,
                       const std::shared_ptr<const AttentionProfile>& profile, int together);

/// [ranks] For how many seconds of a step each rank waited: for messages of core attention and of
/// other stages, and, when it had nothing left to compute, for the last rank.
/// Ignores: waiting for the sum of gradients itself, which all do alike.
std::vector<double> seconds_waited(std::span<const RankSample> ranks);

/// Estimates how many seconds longer a step would have been under plain packing (shorter if less
/// than 0). `ranks` is what all ranks measured in it, with loads in the unit of `packed`, which is
/// not empty.
/// Counts: linear work by tokens and core attention by load, at the rates that each rank had in
/// this step. Nano-batches that are played together end with the slowest worker, because a document
/// that a worker's end cuts makes workers wait for each other's keys in every layer. Of a rank with
/// less than a quarter of the mean tokens or load, the mean rate is taken, since so little says
/// nothing about its speed.
/// Ignores: what sending those keys takes; that a pair of a short document costs more than one of a
/// long document, unless load is counted in ns. The sum of gradients and the update stay as they
/// were.
double plain_packing_adds_s(std::span<const RankSample> ranks, const PackedWork& packed);

}  // namespace distca
