#pragma once
// What bench/attention prints: tables for people, JSON for machines. Any thread.

#include <string>

#include "bench/attention_measure.h"
#include "distca/base/json.h"

namespace distca::bench {

/// Tables, and a line of how many bars are reached.
std::string report_text(const MeasureOptions& options, const Results& results);
Json report_json(const MeasureOptions& options, const Results& results);
/// Of every figure that has a bar.
Tally tally(const Results& results);

}  // namespace distca::bench
