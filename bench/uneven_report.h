#pragma once
// What bench/uneven prints: a table for people, JSON for machines.

#include <string>
#include <vector>

#include "bench/uneven_figures.h"
#include "distca/cost/speeds.h"

namespace distca::bench {

struct UnevenReport {
  std::string overlap;
  bool cgroup = false;                 // what makes a worker slow; false: a busy process
  Split even, even_again;              // a half each, one worker slow
  Split reweighted, reweighted_again;  // by measured speeds
  Split undisturbed;                   // a half each, both fast
  std::vector<Split> fixed;
  Speeds speeds, undisturbed_speeds;  // given out last
  double share_by_half_speed = 0;     // the fast worker's, by even_capacities from the undisturbed
                                      // speeds, one of them halved
};

/// The re-weighted split beside the best fixed one.
Figure judged(const UnevenReport& report);
void print_table(const UnevenReport& report);
void print_json(const UnevenReport& report);

}  // namespace distca::bench
