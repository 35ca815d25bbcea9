#pragma once
// The programs of all ranks for one planned batch.
//
//     const BatchPrograms programs(config, plans, ProgramRequest::Kind::kTrain, num_workers);
//     const Program mine = programs.of(rank, optimizer.exchange());
//
// Any thread may call the methods.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/plan_request.h"
#include "distca/plan/exchange.h"
#include "distca/program/gradient_exchange.h"
#include "distca/program/overlap.h"
#include "distca/program/program.h"

namespace distca {

class BatchPrograms {
 public:
  /// Borrows the configuration and the plans, which were made for so many workers.
  BatchPrograms(const Config& config, const BatchPlans& plans, ProgramRequest::Kind kind,
                int num_workers);

  /// The program of a rank. `gradients` is what it exchanges of them; null on a dedicated server
  /// and for evaluation.
  Program of(int rank, std::shared_ptr<const GradientExchange> gradients) const;
  /// The program of a rank with an exchange of gradients that is made here, of at most so many
  /// buckets, if the rank has one.
  Program of(int rank, int64_t most_buckets = kMostBuckets) const;
  /// Checks the programs of all ranks together, with so few buckets of gradients that the messages
  /// of all pairs of workers take little memory. Returns one line for each fault.
  std::vector<std::string> violations() const;

 private:
  const Config& config_;
  const BatchPlans& plans_;
  ProgramRequest::Kind kind_;
  RunGrid run_;
  std::vector<PlanIndex> indices_;  // [plans_.plans]; empty in a pipeline
};

/// Throws Error(kUsage) if the programs of so many ranks, of which this is one, are too large to be
/// looked at together, which the option `who` does: above `most` operations and messages.
void check_size_together(const Program& program, int ranks, std::string_view who,
                         int64_t most = int64_t{1} << 24);

/// Bytes that a rank sends to ranks of other nodes, if a node has so many neighbouring ranks: what
/// core attention sends and what stages send each other, not sums of gradients.
int64_t bytes_between_nodes(const Program& program, int rank, int64_t ranks_per_node);

/// Returns the exchange of a rank's gradients in a training step, of at most so many buckets, or
/// null on a dedicated server.
std::shared_ptr<const GradientExchange> rank_gradients(const Config& config, const RunGrid& run,
                                                       int rank,
                                                       int64_t most_buckets = kMostBuckets);

}  // namespace distca
