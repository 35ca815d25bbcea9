#pragma once
// What bench/overlap prints: tables for people, JSON for machines. Any thread.

#include <string>
#include <vector>

#include "bench/overlap_measure.h"
#include "distca/base/json.h"

namespace distca::bench {

std::string overlap_text(const OverlapOptions& options, const std::vector<OverlapFigures>& all);
Json overlap_json(const OverlapOptions& options, const std::vector<OverlapFigures>& all);
/// Of the settings that are judged.
Tally overlap_tally(const std::vector<OverlapFigures>& all);

}  // namespace distca::bench
