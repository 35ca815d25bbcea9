#pragma once
// distca simulate --paper: the paper's experiments, played and set next to what it publishes of
// them.

#include <filesystem>
#include <string>

#include "distca/cost/machine.h"

namespace distca::cli {

struct PaperArguments {
  std::string experiment;  // one of kPaperExperiments. Empty means not given.
  std::string rows;        // a part of the names of the rows that are played
  int batches = 1;         // how many each row has
};
inline constexpr const char* kPaperExperiments[] = {"table3", "table4", "fig3a", "fig11", "beyond"};

/// Plays and prints an experiment. `lengths` is a folder; empty means not given. Throws
/// Error(kUsage) if no row has the name or the lengths are not given, and as play_row() does.
void play_paper(const PaperArguments& asked, const std::filesystem::path& lengths,
                const Machine& machine);

}  // namespace distca::cli
