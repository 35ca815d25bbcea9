// distca report: one page about runs, traces and predictions. distca_report.py makes it; this
// checks the words of the command line.

#include <memory>
#include <string>
#include <vector>

#include "cli/python_verb.h"
#include "cli/verbs.h"

namespace distca::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> inputs;
  std::string out;
};

[[noreturn]] void report(const ReportArguments& arguments) {
  std::vector<std::string> words = {arguments.out};
  words.insert(words.end(), arguments.inputs.begin(), arguments.inputs.end());
  become_python("distca-report", words, PythonPackages::kNone);
}

}  // namespace

void add_report(CLI::App& app) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* verb = app.add_subcommand(
      "report", "Draw runs, traces and predicted steps on one page for a browser");
  verb->add_option("inputs", arguments->inputs,
                   "Folders of runs, traces, and files of what distca simulate --json printed")
      ->required()
      ->type_name("RUN|FILE");
  verb->add_option("--out", arguments->out, "The page, an HTML file; an older one is replaced")
      ->required()
      ->type_name("FILE");
  verb->footer("Example:  distca report runs/demo runs/demo/trace.json --out report.html");
  verb->callback([arguments] { report(*arguments); });
}

}  // namespace distca::cli
