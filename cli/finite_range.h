#pragma once
// A range of numbers for an option. CLI::Range lets "nan" pass, which is below nothing and above
// nothing.

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>

namespace distca::cli {

inline CLI::Validator finite_range(double least, double most) {
  const auto check = [least, most](const std::string& text) {
    double value = 0;
    const bool right = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return right ? std::string()
                 : fmt::format("{} is not a number in {:g} .. {:g}", text, least, most);
  };
  return CLI::Validator(check, fmt::format("in [{:g}, {:g}]", least, most));
}

}  // namespace distca::cli
