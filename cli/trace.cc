// distca trace: where the time of traced steps went, and how a prediction differs from a run.
// distca_trace.py does it; this checks the words of the command line.

#include <memory>
#include <string>
#include <vector>

#include "cli/python_verb.h"
#include "cli/verbs.h"

namespace distca::cli {
namespace {

struct TraceArguments {
  std::string file;
  std::string against;  // empty if not given
  bool json = false;
};

[[noreturn]] void trace(const TraceArguments& arguments) {
  become_python("distca-trace",
                {arguments.file, arguments.against, arguments.json ? "json" : "text"},
                PythonPackages::kNone);
}

}  // namespace

void add_trace(CLI::App& app) {
  auto arguments = std::make_shared<TraceArguments>();
  CLI::App* verb = app.add_subcommand(
      "trace", "Where each millisecond of steps went: a file of distca train or simulate --trace");
  verb->add_option("file", arguments->file, "What distca train or distca simulate --trace wrote")
      ->required()
      ->type_name("FILE");
  verb->add_option("--against", arguments->against,
                   "The trace of a run that FILE predicts: says where they differ")
      ->type_name("FILE");
  verb->add_flag("--json", arguments->json, "For machines; times in nanoseconds");
  verb->footer(
      "A prediction beside a run:  distca trace predicted.json --against trace.json\n"
      "Example:  distca trace runs/demo/trace.json");
  verb->callback([arguments] { trace(*arguments); });
}

}  // namespace distca::cli
