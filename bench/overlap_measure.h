#pragma once
// Measures the settings of bench/overlap, on each of two ranks alike; rank 0 writes the lines.
// Thread rule: one thread a rank, pinned, all ranks in the same order.

#include <span>

#include "bench/exchange_windows.h"
#include "bench/exchanges_alone.h"
#include "bench/overlap_settings.h"
#include "bench/swapped_plan.h"
#include "distca/base/json.h"
#include "distca/comm/communicator.h"
#include "distca/model/llama.h"
#include "distca/train/step.h"

namespace distca::bench {

constexpr int kNanoBatches = 2;  // nano-batches of a step

struct OverlapOptions {
  LlamaConfig model;
  int rounds = 15;
  int shown_rounds = 5;  // rounds of settings and arms that are not judged
};

/// Bytes a second that each of the two ranks sends while the other does, on a wire that is limited
/// to `mb_per_s`. 0 means that it is not limited.
double wire_rate(Communicator& comm, double mb_per_s);

/// Plays the exchanges alone and measures how much of a rank's core they take, compared with an
/// idle core (core_time.h): "alone_s", the seconds on this rank, and as means over the ranks
/// "idle_share", and in seconds "used_s" and "charged_s". Adds to `times`.
Json core_figures(ExchangesAlone& alone, Communicator& comm, OpTimes* times);

/// One rank's part of a batch, under whichever overlap mode.
struct RankBatch {
  std::vector<NanoPart> parts;
  std::vector<LocalTokens> tokens;
};
RankBatch rank_batch(const SwappedBatch& batch, const LlamaConfig& model, int rank);

/// Adds the means over a program's operations, played `played` times: of compute where `computed`
/// says so, else of the exchanges that wait one after another.
void add_means(const Program& program, const OpTimes& times, int played, bool computed,
               OpSeconds* seconds);

/// Measures each setting: limits the wire of this rank's namespace, chooses how much is swapped and
/// plays the rounds. Lines: the setting, one a round, then the time of each kind of exchange
/// compared with that of what it runs under.
void measure_overlap(const OverlapOptions& options, std::span<const OverlapSetting> settings,
                     Communicator& comm);

}  // namespace distca::bench
