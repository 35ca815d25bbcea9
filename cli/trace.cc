// distca trace: where the time of traced steps went. distca_trace.py does it; this checks the words
// of the command line.

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/verbs.h"
#include "distca/base/error.h"

namespace distca::cli {
namespace {

struct TraceArguments {
  std::string file;
  bool json = false;
};

/// This process goes on as Python. -I: whatever lies in this folder and the environment says.
[[noreturn]] void become_python(const TraceArguments& arguments) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename(DISTCA_TRACE_PROGRAM);
  execlp("python3", "python3", "-I", program.c_str(), arguments.file.c_str(),
         arguments.json ? "--json" : nullptr, nullptr);
  throw Error(ErrorKind::kIo, "python3: {}; distca trace needs it", std::strerror(errno));
}

}  // namespace

void add_trace(CLI::App& app) {
  auto arguments = std::make_shared<TraceArguments>();
  CLI::App* verb = app.add_subcommand(
      "trace", "Where each millisecond of traced steps went: a file of distca train --trace");
  verb->add_option("file", arguments->file, "What distca train --trace wrote")
      ->required()
      ->type_name("FILE");
  verb->add_flag("--json", arguments->json, "For machines; times in nanoseconds");
  verb->footer("Example:  distca trace runs/demo/trace.json");
  verb->callback([arguments] { become_python(*arguments); });
}

}  // namespace distca::cli
