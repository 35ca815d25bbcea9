#pragma once
// The frame of every benchmark: it reads the options, writes what was measured as lines of standard
// output, a JSON object each, first a header, then one a round or a measured row, and turns what is
// thrown into one line and an exit code (distca/base/error.h). bench/report.py makes figures,
// verdicts and tables of the lines. Thread rule: one thread of one rank.

#include <functional>
#include <string_view>

#include "distca/base/json.h"

namespace CLI {
class App;
}

namespace distca::bench {

/// Runs `body` and returns its exit code. An Error is one line on standard error, "NAME: error:
/// ...", and its exit code; every other exception "NAME: bug: ..." and 70. `name`: "bench/plan".
int run_benchmark(std::string_view name, const std::function<int()>& body);

/// Reads the options. False where --help asked only for what was printed here: end with 0. Throws
/// Error(kUsage).
[[nodiscard]] bool parse_options(CLI::App& app, int argc, char** argv);

/// The header: benchmark ("plan"), machine, date, build, and `settings`, an object.
void write_header(std::string_view bench, Json settings);
/// `line`: what kind of line, "round"; `values`: an object.
void write_line(std::string_view line, Json values);

}  // namespace distca::bench
