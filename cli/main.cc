// distca: the one program. Exit codes: 0 done, 1 the world failed, 2 bad input, 70 a bug of ours
// (docs/errors.md).

#include <cstdio>
#include <exception>

#include "cli/verbs.h"
#include "distca/base/build_info.h"
#include "distca/base/error.h"

namespace {

std::string version_text() {
  namespace build = distca::build_info;
  return fmt::format("distca {} ({}), {} build, {}, PyTorch {}, CUDA {}{}{}", build::kVersion,
                     build::kCommit, build::kBuildType, build::kCompiler,
                     *build::kTorch ? build::kTorch : "none", *build::kCuda ? build::kCuda : "none",
                     *build::kSanitize ? ", sanitizers " : "", build::kSanitize);
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
#ifdef DISTCA_WITH_TORCH
  distca::cli::add_train(app, &exit_code);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    throw distca::Error(distca::ErrorKind::kUsage, "{} (see distca --help)", error.what());
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const distca::Error& error) {
    std::fprintf(stderr, "distca: error: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distca: bug: %s\n", error.what());
    return 70;
  }
}
