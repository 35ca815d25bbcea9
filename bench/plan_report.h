#pragma once
// What bench/plan prints: tables for people, JSON for machines.

#include <string>
#include <vector>

#include "bench/plan_bars.h"
#include "bench/plan_measure.h"
#include "bench/plan_sample.h"

namespace distca::bench {

struct Row {
  std::string workload;
  int servers = 0;
  std::string name;  // of the variant
  Measured measured;
  Measured original;  // of the same workload
};

struct Report {
  int rounds = 0;
  uint64_t seed = 0;  // of the samples
  std::string scheduler;
  std::vector<Variant> variants;
  std::vector<Row> rows;
  std::vector<Row> rivals;
  std::vector<SampleRow> samples;
  std::string no_samples;  // why there are none
  std::vector<Verdict> verdicts;
};

void print_tables(const Report& report);
void print_json(const Report& report);

}  // namespace distca::bench
