#include "bench/main.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <exception>
#include <string>

#include "distca/base/build_info.h"
#include "distca/base/error.h"
#include "distca/base/machine.h"

namespace distca::bench {

int run_benchmark(std::string_view name, const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    fmt::print(stderr, "{}: error: {}\n", name, error.what());
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

void write_header(std::string_view bench, Json settings) {
  namespace build = build_info;
  const std::time_t now = std::time(nullptr);
  char date[] = "2000-01-01T00:00:00Z";
  std::strftime(date, sizeof(date), "%FT%TZ", std::gmtime(&now));
  Json head{
      {"bench", bench},           {"machine", cpu_name()},      {"date", date},
      {"commit", build::kCommit}, {"build", build::kBuildType}, {"compiler", build::kCompiler},
      {"torch", build::kTorch}};
  head.update(settings);
  write_line("header", std::move(head));
}

void write_line(std::string_view line, Json values) {
  values["line"] = line;
  fmt::print("{}\n", values.dump());
  std::fflush(stdout);
}

}  // namespace distca::bench
