#pragma once
// The result of a search for the best setting (find_best.h), which that prints, and its JSON, with
// the steps of the best settings on the documents that their own runs would have.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/asked_step.h"
#include "distca/base/json.h"
#include "distca/config/config.h"
#include "distca/cost/machine.h"
#include "distca/forecast/find_best.h"

namespace distca::cli {

/// The parts of a step by which settings are compared, on average over all ranks.
struct Loss {
  const char* name;
  double (*seconds)(const PlayedSetting&);
};
inline constexpr std::array<Loss, 6> kLosses{{
    {"attention", [](const PlayedSetting& of) { return of.mean.attention; }},
    {"linear", [](const PlayedSetting& of) { return of.mean.linear - of.recomputed_s; }},
    {"recomputed", [](const PlayedSetting& of) { return of.recomputed_s; }},
    {"copies, issues", [](const PlayedSetting& of) { return of.mean.copied + of.mean.issued; }},
    {"waits for peers", [](const PlayedSetting& of) { return of.mean.late + of.mean.idle; }},
    {"waits for bytes", [](const PlayedSetting& of) { return of.mean.exposed; }},
}};

/// Steps of one setting with the documents that `distca train` would have: nano-batches cut
/// documents where they end, and a setting with fewer of them cuts fewer. It ends before the first
/// step that cannot be planned.
using OwnSteps = std::vector<double>;  // [step] seconds, from Search::step on

/// All that is printed.
struct Search {
  const Config& config;
  const Machine& machine;
  int gpus = 1;
  int64_t step = 1;
  int64_t nano_batches = 1;  // the most that a setting has
  std::string notes;
  std::string command;  // `distca train` with the words of the search, for a shell
  std::vector<Found> found;
  /// [found][best] The step of the search, and of each best setting those behind it, up to
  /// kOwnSteps.
  std::vector<std::vector<OwnSteps>> own;

  int64_t tokens() const { return config.batch.nano_batches * config.batch.nano_batch_tokens; }
  double memory_gib() const { return machine.of(MachineNumber::kMemoryGib); }
};
/// A lead of a few percent may be that of one step's documents.
inline constexpr int64_t kOwnSteps = 4;

/// Plays the own steps of what was found. `asked` says the documents.
void play_own_steps(Search& search, const StepArguments& asked);

/// The step of one found setting over that of ours at its best, in each step that both have.
std::vector<double> own_ratios(const Search& search, size_t found);

Json json_of(const Search& search);

}  // namespace distca::cli
