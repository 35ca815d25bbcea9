#include "bench/lines.h"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>

#include "distca/base/build_info.h"
#include "distca/base/machine.h"

namespace distca::bench {

void write_header(std::string_view bench, Json settings) {
  namespace build = build_info;
  const std::time_t now = std::time(nullptr);
  char date[] = "2000-01-01T00:00:00Z";
  std::strftime(date, sizeof(date), "%FT%TZ", std::gmtime(&now));
  settings.update({{"bench", bench},
                   {"machine", cpu_name()},
                   {"date", date},
                   {"commit", build::kCommit},
                   {"build", build::kBuildType},
                   {"compiler", build::kCompiler},
                   {"torch", build::kTorch}});
  write_line("header", std::move(settings));
}

void write_line(std::string_view line, Json values) {
  values["line"] = line;
  fmt::print("{}\n", values.dump());
  std::fflush(stdout);
}

}  // namespace distca::bench
