// distca trace: where the time of traced steps went. distca_trace.py does it; this checks the words
// of the command line.

#include <memory>
#include <string>
#include <vector>

#include "cli/python_verb.h"
#include "cli/verbs.h"

namespace distca::cli {
namespace {

struct TraceArguments {
  std::string file;
  bool json = false;
};

[[noreturn]] void trace(const TraceArguments& arguments) {
  std::vector<std::string> words = {arguments.file};
  if (arguments.json) words.emplace_back("--json");
  become_python("distca-trace", words, PythonPackages::kNone);
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
  verb->callback([arguments] { trace(*arguments); });
}

}  // namespace distca::cli
