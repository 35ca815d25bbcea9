#include "bench/main.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "distca/base/error.h"

namespace distca::bench {

int run_benchmark(std::string_view name, const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::string line = error.what();  // one line, whatever bad input it quotes
    std::ranges::replace(line, '\n', ' ');
    fmt::print(stderr, "{}: error: {}\n", name, line);
    return error.exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: bug: {}\n", name, error.what());
    return 70;
  }
}

bool parse_options(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      throw Error(ErrorKind::kUsage, "{} (see --help)", error.what());
    }
    app.exit(error);  // --help
    return false;
  }
  return true;
}

}  // namespace distca::bench
