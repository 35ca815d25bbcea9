#pragma once
// What a benchmark measured, as lines of standard output, a JSON object each: first a header, then
// one a round or a measured row. bench/report.py makes figures, verdicts and tables of them.
// Thread rule: one thread of one rank.

#include <string_view>

#include "distca/base/json.h"

namespace distca::bench {

/// The header: benchmark ("plan"), machine, date, build, and `settings`, an object.
void write_header(std::string_view bench, Json settings);
/// `line`: what kind of line, "round"; `values`: an object.
void write_line(std::string_view line, Json values);

}  // namespace distca::bench
