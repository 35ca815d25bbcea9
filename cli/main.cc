// distca: the one program. Exit codes: 0 done, 1 the world failed, 2 bad input, 70 a bug of ours
// (docs/errors.md).

#include <stdlib.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>

#include "cli/verbs.h"
#include "distca/base/build_info.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/text.h"

namespace {

std::string version_text() {
  namespace build = distca::build_info;
  return fmt::format("distca {} ({}), {} build, {}, PyTorch {}, CUDA {}{}{}", build::kVersion,
                     build::kCommit, build::kBuildType, build::kCompiler,
                     *build::kTorch ? build::kTorch : "none", *build::kCuda ? build::kCuda : "none",
                     *build::kSanitize ? ", sanitizers " : "", build::kSanitize);
}

/// What is wrong with the command line. Of an unknown verb, CLI11 says only that one is missing.
std::string complaint(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* level = &app;
  while (!level->get_subcommands().empty()) level = level->get_subcommands().front();
  std::vector<std::string> verbs;
  for (const CLI::App* verb : level->get_subcommands([](const CLI::App*) { return true; })) {
    verbs.push_back(verb->get_name());
  }
  const std::vector<std::string> unknown = app.remaining(true);
  if (verbs.empty() || unknown.empty() || unknown[0].starts_with('-')) return error.what();
  const auto nearest = distca::nearest_word(unknown[0], verbs);
  return fmt::format("unknown verb {}{}", unknown[0],
                     nearest ? fmt::format("; did you mean {}?", *nearest) : "");
}

int run(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app{"Train language models on long, uneven documents at the speed of even ones.",
               "distca"};
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text());
  app.footer("Try:  distca data prepare --text docs --tokenizer byte --out data/docs");
  distca::cli::add_data(app);
  distca::cli::add_plan(app);
  distca::cli::add_trace(app);
#ifdef DISTCA_WITH_TORCH
  distca::cli::add_profile(app);
  distca::cli::add_train(app, &exit_code);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    throw distca::Error(distca::ErrorKind::kUsage, "{} (see distca --help)", complaint(app, error));
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  distca::open_standard_streams();
  // PyTorch takes its tensors in huge pages where this is set before its first allocation. Rows of
  // tokens lie a page apart, and translating their addresses slows the attention kernel otherwise.
  // A value that is there already stays.
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
  // A file that may not grow (ulimit -f) is a failed write like any other.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int exit_code = run(argc, argv);
    distca::standard_error().finish(distca::kConsolePatience);
    return exit_code;
  } catch (const distca::Error& error) {
    std::string line = error.what();  // one line, whatever bad input it quotes
    std::ranges::replace(line, '\n', ' ');
    distca::say_last("distca: error: " + line);
    return error.exit_code();
  } catch (const std::exception& error) {
    distca::say_last(fmt::format("distca: bug: {}", error.what()));
    return 70;
  }
}
