#pragma once
// What bench/training prints: tables for people, JSON for machines.

#include <optional>
#include <string>
#include <vector>

#include "bench/training_contest.h"

namespace distca::bench {

struct TrainingReport {
  ContestOptions options;
  int workers = 0;
  double peak_gflops = 0;  // of all workers together
  Speeds speeds;           // as measured before
  std::optional<RivalCheck> check;
  std::vector<SourceResult> sources;
  std::vector<std::string> absent;  // sources that could not be measured, and why
};

/// Sources in which ours stands idle for longer than the bar.
int num_missed(const TrainingReport& report);

void print_tables(const TrainingReport& report);
void print_json(const TrainingReport& report);

}  // namespace distca::bench
