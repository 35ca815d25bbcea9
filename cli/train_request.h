#pragma once
// A request to train, which needs no PyTorch: the verb's words, the configuration, and which ranks
// run here. --print-config, --dry-run and every error of a configuration need no more.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "distca/comm/launch/rendezvous.h"
#include "distca/config/config.h"
#include "distca/forecast/memory.h"

namespace distca::cli {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  int workers = 1;
  int master_port = 0;
  std::string trace;
  std::optional<std::string> resume;  // Empty means the newest checkpoint.
  int max_restarts = 0;
  bool print_config = false;
  bool dry_run = false;
  std::filesystem::path lengths;  // lengths of a dry run's documents, in place of data.prefix
};

/// A run that is to be started.
struct TrainRequest {
  Config config;
  std::optional<Rendezvous> rendezvous;  // none unless somebody started this process as a rank
  int workers = 1;
  LocalRanks local;  // ranks of this machine

  bool is_first() const { return !rendezvous || rendezvous->rank == 0; }
};
/// Ranks that hold weights, of all that run together. `workers` is what was asked for. Throws
/// Error(kConfig) if so many cannot be.
int workers_of(const Config& config, int workers, const std::optional<Rendezvous>& rendezvous);

/// Starts a run, or goes on as the program that can. Returns the exit code.
using StartTraining = std::function<int(const TrainArguments&, const TrainRequest&)>;

/// Trains (cli/train.cc). Only the program with PyTorch has it.
int run_train(const TrainArguments& arguments, const TrainRequest& request);

}  // namespace distca::cli
