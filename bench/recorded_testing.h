#pragma once
// Steps whose times lie in bench/results, played again by prices (sim/player.h): plans and programs
// of the same documents, and prices that the benchmark measured before its rounds. What no record
// has is assumed, once for all (recorded_lines_testing.h). Any thread may call the functions.

#include <filesystem>
#include <string>
#include <vector>

namespace distca::bench {

struct RecordedStep {
  std::string name;        // "pipeline paced: P = 2, M = 4, attention 0.25: 1F1B, pairs"
  double measured_s = 0;   // median over rounds
  double predicted_s = 0;  // the median for the same documents

  /// Relative to the measured time.
  double error() const { return predicted_s / measured_s - 1; }
};

// Each reads the file that its benchmark has left. Throws Error(kData) where it cannot be read, and
// where documents are not those that were measured.
std::vector<RecordedStep> recorded_paced(const std::filesystem::path& lines);
std::vector<RecordedStep> recorded_wire(const std::filesystem::path& lines);
std::vector<RecordedStep> recorded_real(const std::filesystem::path& lines);
/// `report`: the tables that bench/report.py has printed.
std::vector<RecordedStep> recorded_overlap(const std::filesystem::path& report);
/// `lengths`: a file whose lines "source" have the sources' documents.
std::vector<RecordedStep> recorded_training(const std::filesystem::path& lines,
                                            const std::filesystem::path& lengths);

/// All recorded configurations. `root`: the folder that has bench/results.
std::vector<RecordedStep> recorded_steps(const std::filesystem::path& root);

}  // namespace distca::bench
