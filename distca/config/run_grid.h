#pragma once
// The places of the ranks in a run: the stages of its pipeline, their replicas and layers, and the
// dedicated servers. Without a pipeline there is one stage. Any thread may call the functions.
//
// A server, which plans, exchanges and sums of gradients number, is one rank or, with tensor
// parallelism, some ranks that divide the matrices of its layers. They are neighbours.
//
//     const RunGrid run = run_grid(config, num_workers);
//     const std::vector<Weight> weights = weight_table(config.model, run.stage_of(rank));

#include <string>
#include <vector>

#include "distca/base/integers.h"
#include "distca/config/config.h"
#include "distca/plan/pipeline/ticks.h"
#include "distca/program/program.h"

namespace distca {

struct RunGrid {
  Grid grid;                  // server = stage * replicas + replica, then the dedicated servers
  std::vector<Range> layers;  // [stage] Stage::layers
  int tensor = 1;             // ranks of a server: rank = server * tensor + index
  int virtual_stages = 1;     // in each stage

  bool is_pipeline() const { return grid.stages > 1; }
  /// Returns true if no rank holds the whole model.
  bool divides_model() const { return grid.stages > 1 || tensor > 1; }
  /// The number of ranks that hold weights.
  int num_workers() const { return grid.num_workers() * tensor; }
  int num_ranks() const { return grid.num_ranks() * tensor; }
  int server_of(int rank) const { return rank / tensor; }
  int tensor_index(int rank) const { return rank % tensor; }
  int rank_of(int server, int index) const { return server * tensor + index; }
  /// The part of the model that a rank holds. A dedicated server's stage has no layers.
  Stage stage_of(int rank) const;
  /// The number of layers that a stage holds, and the most that any holds.
  int64_t num_layers(int stage) const;
  int64_t most_layers() const;
  /// The ranks of a stage, in ascending order: those that hold the same weights as this one, which
  /// is one of them, and the other parts of the same matrices.
  std::vector<int> stage_ranks(int rank) const;
  /// The first of the ranks that hold the same weights as this one.
  int first_replica(int rank) const {
    return rank_of(grid.rank(grid.stage(server_of(rank)), 0), tensor_index(rank));
  }
  /// "rank 3" or, in a pipeline, "rank 3 (stage 1, replica 1)", or, with tensor parallelism, "rank
  /// 3 (replica 1, tensor 1)".
  std::string name_of(int rank) const;
  /// A text in which each "rank 3" has become name_of(3), where it says more.
  std::string named(const std::string& text) const;
  /// "4 workers" or, in a pipeline, "4 workers = 2 stages (layers 0-3, 4-7) x 2 replicas", or, with
  /// tensor parallelism, "4 workers = 2 replicas x 2 tensor".
  std::string describe() const;
  /// "2 dedicated servers" or, with tensor parallelism, "2 dedicated servers of 4 ranks each"; ""
  /// if there are none.
  std::string describe_dedicated() const;
};

/// The grid of a run with so many ranks that hold weights. Throws Error(kConfig) if they cannot be
/// divided over the stages and the parts of tensor parallelism.
RunGrid run_grid(const Config& config, int num_workers);

/// Throws Error(kConfig), which names the keys, if a configuration asks for tensor parallelism that
/// cannot be. load_config calls it.
void check_tensor(const Config& config);

/// Throws Error(kConfig), which names the keys, if a configuration asks for a pipeline that cannot
/// be. load_config calls it.
void check_pipeline(const Config& config);

}  // namespace distca
