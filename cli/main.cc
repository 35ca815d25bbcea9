// distca: the one program, compiled twice: without PyTorch, and with it (cli/CMakeLists.txt). Exit
// codes: 0 done, 1 the world failed, 2 bad input, 3 training went wrong, 70 a bug of ours
// (docs/errors.md).

#include <fmt/ranges.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <sstream>

#include "cli/verbs.h"
#include "distca/base/build_info.h"
#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/text.h"

namespace {

/// How `--help` looks: options next to their descriptions, in at most 100 columns.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNames); }

  /// The description of an option, broken into lines. An indented line stays indented.
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text;
    std::istringstream lines(option->get_description());
    for (std::string line; std::getline(lines, line);) {
      const size_t indent = line.find_first_not_of(' ');
      size_t shift = indent;
      for (const std::string& piece :
           distca::wrapped(line.substr(indent), kMeanings - indent - 2)) {
        if (!text.empty()) text += '\n';
        text.append(shift, ' ');
        text += piece;
        shift = indent > 0 ? indent + 2 : 0;
      }
    }
    return text;
  }

 private:
  static constexpr size_t kNames = 34, kMeanings = 100 - kNames;
};

/// Data sets, ranks and their connections each have descriptors, and 1,024 are few.
void take_more_descriptors() {
  constexpr rlim_t kEnough = 1 << 16;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(kEnough, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

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

/// Says what is wrong with the words behind `level`'s name. Unlike CLI11, it suggests a word.
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
  if (word.starts_with('-')) {
    const bool is_perhaps_key =
        std::ranges::count(options, "--config") > 0 && !distca::nearest_word(word, options);
    return unknown_word("option", word, options) +
           (is_perhaps_key ? "; settings are words KEY=VALUE, which distca train --print-config "
                             "lists"
                           : "");
  }
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

#ifdef DISTCA_TORCH_PROGRAM
/// This process goes on as the program with PyTorch, with the same words.
[[noreturn]] int become_torch_program(char** argv) {
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename(DISTCA_TORCH_PROGRAM);
  execv(program.c_str(), argv);
  throw distca::Error(distca::ErrorKind::kIo, "{}: {}; it has to lie beside distca",
                      program.string(), std::strerror(errno));
}
#endif

int run(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app{"Train language models on long, uneven documents at the speed of even ones.",
               "distca"};
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text());
  app.footer("Try:  distca data prepare --text docs --tokenizer byte --out data/docs");
  app.formatter(std::make_shared<HelpFormatter>());
  distca::cli::add_data(app);
  distca::cli::add_plan(app);
  distca::cli::add_simulate(app);
  distca::cli::add_trace(app);
  distca::cli::add_report(app);
  distca::cli::add_checkpoint(app);
  distca::cli::add_export(app);
  distca::cli::add_init(app);
  distca::cli::add_kernels(app);
  distca::cli::add_monitor(app);
#ifdef DISTCA_WITH_TORCH
  distca::cli::add_evaluate(app, &exit_code);
  distca::cli::add_generate(app);
  distca::cli::add_profile(app, &exit_code);
  distca::cli::add_train(app, &exit_code, distca::cli::run_train);
  distca::cli::add_verify(app);
#endif
#if defined(DISTCA_TORCH_PROGRAM)
  distca::cli::add_train(app, &exit_code,
                         [argv](const auto&, const auto&) { return become_torch_program(argv); });
  const auto is_meant = [&](const CLI::App* verb) { return verb->get_name() == argv[1]; };
  if (argc < 2 || app.get_subcommands(is_meant).empty()) become_torch_program(argv);
#elif !defined(DISTCA_WITH_TORCH)
  distca::cli::add_train(app, &exit_code, [](const auto&, const auto&) -> int {
    throw distca::Error(distca::ErrorKind::kUsage,
                        "train: this distca is built without PyTorch: it takes --dry-run and "
                        "--print-config, and trains nothing");
  });
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

/// All that is to be said is said when it returns; gives the exit code.
int run_and_report(int argc, char** argv) {
  try {
    const int exit_code = run(argc, argv);
    if (const int why = distca::standard_output().write_error(); why != 0) {
      distca::standard_error().important(
          fmt::format("distca: warning: stdout: {}: part of what was to be printed is lost",
                      std::strerror(why)));
    }
    distca::standard_error().finish(distca::kConsolePatience);
    return exit_code;
  } catch (...) {
    const distca::ExitMessage words = distca::exit_message(std::current_exception());
    distca::say_last(words.line);
    return words.exit_code;
  }
}

}  // namespace

int main(int argc, char** argv) {
  distca::open_standard_streams();
  take_more_descriptors();
  // PyTorch takes its tensors in huge pages where this is set before its first allocation. Rows of
  // tokens lie a page apart, and translating their addresses slows the attention kernel otherwise.
  // A value that is there already stays.
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
  const std::string now = fmt::format("{:.3f}", distca::wall_seconds());
  setenv(distca::kStartedAt, now.c_str(), /*overwrite=*/0);
  // A file that may not grow (ulimit -f) is a failed write like any other.
  std::signal(SIGXFSZ, SIG_IGN);
  const int exit_code = run_and_report(argc, argv);
#ifdef DISTCA_WITH_TORCH
  // PyTorch's exit handlers take 0.1 s and may wait for a device for ever: nothing needs them.
  std::fflush(stdout);
  std::_Exit(exit_code);
#endif
  return exit_code;
}
