#pragma once
// What every benchmark's main does: read its options, and turn what is thrown into one line and an
// exit code (distca/base/error.h). Thread rule: main's thread.

#include <functional>
#include <string_view>

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

}  // namespace distca::bench
