#pragma once
// Parts that several verbs share: options that are numbers within limits, files that a verb makes,
// and how far it is.

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/scalar_type.h"

namespace distca::cli {

/// Accepts a number in [least, most], of a whole type a whole one, and nothing else. CLI::Range
/// does not suffice, because it accepts "nan", which is neither below nor above any limit.
template <typename T>
CLI::Validator in_range(T least, T most) {
  constexpr bool kIsWhole = std::is_integral_v<T>;
  const auto shown = [](T limit) {
    return fmt::format(fmt::runtime(kIsWhole ? "{}" : "{:g}"), limit);
  };
  const std::string range = fmt::format("{} .. {}", shown(least), shown(most));
  const auto check = [=](const std::string& text) -> std::string {
    T value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return "";
    if (!kIsWhole) return fmt::format("{} is not a number in {}", text, range);
    return fmt::format("{} is not a whole number in {}, such as {}", text, range,
                       std::clamp<int64_t>(1000, least, most));
  };
  return CLI::Validator(check, fmt::format("in [{}, {}]", shown(least), shown(most)));
}

/// Adds an option that is a number in [least, most]. A default of 0 means that the option is not
/// given; help then shows no default.
template <typename T>
CLI::Option* number(CLI::App& verb, const char* name, T& value, std::type_identity_t<T> least,
                    std::type_identity_t<T> most, const char* meaning) {
  CLI::Option* option = verb.add_option(name, value, meaning)->check(in_range<T>(least, most));
  return value == 0 ? option : option->capture_default_str();
}

/// Adds an option that is one of `types` in any of its spellings (base/scalar_type.h).
inline CLI::Option* number_type(CLI::App& verb, const char* name, std::string& value,
                                const std::vector<std::string>& types, const char* meaning) {
  CLI::Option* option =
      verb.add_option(name, value, meaning)
          ->check(CLI::IsMember(types))
          ->transform([](const std::string& word) { return std::string(type_name(word)); });
  return value.empty() ? option : option->capture_default_str();
}

/// Prints lines that the user should see, and that change nothing.
inline void say_notes(std::span<const std::string> notes) {
  for (const std::string& note : notes) fmt::print(stderr, "distca: note: {}\n", note);
}

/// Shows on stderr how far a verb is: on one line of a terminal ten times a second, elsewhere a
/// line every ten seconds.
class PacedProgress {
 public:
  void operator()(const std::string& words) {
    if (since_shown_.seconds() < (standard_error().is_terminal() ? 0.1 : 10)) return;
    since_shown_.restart();
    standard_error().progress(words);
  }

 private:
  Stopwatch since_shown_;
};

/// A line on stderr that says how far a verb is: on a terminal in place of the last one, ten times
/// a second, and erased in the end; elsewhere a new one every `every_s` seconds.
class ProgressLine {
 public:
  explicit ProgressLine(double every_s)
      : terminal_(isatty(STDERR_FILENO) == 1), every_s_(terminal_ ? 0.1 : every_s) {}
  ~ProgressLine() {
    if (terminal_) std::fputs("\r\033[K", stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text) {
    if (since_shown_.seconds() < every_s_) return;
    since_shown_.restart();
    fmt::print(stderr, "{}{}{}", terminal_ ? "\r" : "", text, terminal_ ? "\033[K" : "\n");
    std::fflush(stderr);
  }

 private:
  bool terminal_;
  double every_s_;
  Stopwatch since_shown_;
};

/// Throws Error(kUsage) if one of the files that a verb with --out makes is there already, unless
/// --overwrite is given.
inline void check_outputs(std::span<const std::filesystem::path> files, bool overwrite) {
  for (const std::filesystem::path& file : files) {
    std::error_code denied;  // writing says why, if the path cannot be looked at
    DISTCA_THROW_IF(!overwrite && std::filesystem::exists(file, denied), ErrorKind::kUsage,
                    "{} is there already: choose another --out or give --overwrite", file.string());
  }
}

}  // namespace distca::cli
