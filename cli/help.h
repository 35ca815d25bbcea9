#pragma once
// How `--help` looks: options next to their descriptions, in at most 100 columns. Thread rule: one
// thread.

#include <CLI/CLI.hpp>

#include <sstream>
#include <string>

#include "distca/base/text.h"

namespace distca::cli {

/// Set it as the formatter of a CLI::App.
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
      for (const std::string& piece : wrapped(line.substr(indent), kMeanings - indent - 2)) {
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

}  // namespace distca::cli
