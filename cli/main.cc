// distca: the one program. Exit codes: 0 done, 1 the world failed, 2 bad input, 70 a bug of ours
// (docs/errors.md).

#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <system_error>

#include "cli/help.h"
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

/// The verb that was reached, "distca data prepare", or the one before it whose words are unknown.
const CLI::App& reached(const CLI::App& app, std::string* words) {
  const CLI::App* level = &app;
  *words = app.get_name();
  while (level->remaining().empty() && !level->get_subcommands().empty()) {
    level = level->get_subcommands().front();
    *words += " " + level->get_name();
  }
  return *level;
}

std::string unknown_word(const char* what, const std::string& word,
                         const std::vector<std::string>& known) {
  const auto nearest = distca::nearest_word(word, known);
  return fmt::format("unknown {} {}{}", what, word,
                     nearest ? fmt::format("; did you mean {}?", *nearest) : "");
}

/// What is wrong with the words behind `level`'s name, which CLI11 says without a suggestion.
std::string complaint(const CLI::App& app, const CLI::App& level, const CLI::ParseError& error) {
  std::vector<std::string> verbs, options;
  for (const CLI::App* verb : level.get_subcommands([](const CLI::App*) { return true; })) {
    verbs.push_back(verb->get_name());
  }
  for (const CLI::Option* option : level.get_options()) {
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  }
  const std::vector<std::string> unknown = app.remaining(true);
  if (unknown.empty()) {
    return verbs.empty() || dynamic_cast<const CLI::RequiredError*>(&error) == nullptr
               ? error.what()
               : fmt::format("a verb is missing: {}", fmt::join(verbs, ", "));
  }
  const std::string word = unknown[0].substr(0, unknown[0].find('='));
  if (word.starts_with('-')) return unknown_word("option", word, options);
  return verbs.empty() ? fmt::format("unexpected word {}", unknown[0])
                       : unknown_word("verb", unknown[0], verbs);
}

/// Output that did not arrive is a failure, unless its reader has gone.
void flush_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  if (errno == 0) {  // an earlier write failed and its reason is lost: another one has it
    std::fputc('\n', stdout);
    std::fflush(stdout);
  }
  if (errno == EPIPE) return;
  throw distca::Error(distca::ErrorKind::kIo, "stdout: {}",
                      errno != 0 ? std::strerror(errno) : "cannot be written");
}

/// What the standard library and PyTorch throw when the machine says no: a failure of the world.
std::string failure_of_the_world(const std::exception& error) {
  const std::string what = error.what();
  const std::string_view allocator = "can't allocate memory: ";  // of PyTorch on the host
  if (const size_t at = what.find(allocator); at != std::string::npos) {
    const size_t begin = at + allocator.size();
    return "out of memory: " + what.substr(begin, what.find_first_of(".\n", begin) - begin);
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  if (what.find("out of memory") != std::string::npos) return what.substr(0, what.find('\n'));
  if (std::ferror(stdout) != 0 && dynamic_cast<const std::system_error*>(&error) != nullptr) {
    return fmt::format("stdout: {}", static_cast<const std::system_error&>(error).code().message());
  }
  return dynamic_cast<const std::system_error*>(&error) != nullptr ? what : "";
}

int report(const std::string& message, int exit_code) {
  std::string line = message;  // one line, whatever bad input it quotes
  std::ranges::replace(line, '\n', ' ');
  distca::say_last("distca: error: " + line);
  return exit_code;
}

int run(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app{"Train language models on long, uneven documents at the speed of even ones.",
               "distca"};
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text());
  app.footer("Try:  distca data prepare --text docs --tokenizer byte --out data/docs");
  app.formatter(std::make_shared<distca::cli::HelpFormatter>());
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
    if (error.get_exit_code() != 0) {
      std::string verb;
      const CLI::App& level = reached(app, &verb);
      throw distca::Error(distca::ErrorKind::kUsage, "{} (see {} --help)",
                          complaint(app, level, error), verb);
    }
    exit_code = app.exit(error);  // --help, --version
  }
  flush_stdout();
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
    return report(error.what(), error.exit_code());
  } catch (const std::exception& error) {
    if (const std::string world = failure_of_the_world(error); !world.empty())
      return report(world, 1);
    distca::say_last(fmt::format("distca: bug: {}", error.what()));
    return 70;
  }
}
