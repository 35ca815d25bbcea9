#pragma once
// Options that are numbers within limits. CLI::Range does not suffice, because it accepts "nan",
// which is neither below nor above any limit.

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>
#include <type_traits>

namespace distca::cli {

/// Accepts a number in [least, most], and nothing else.
inline CLI::Validator finite_range(double least, double most) {
  const auto check = [least, most](const std::string& text) {
    double value = 0;
    const bool right = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return right ? std::string()
                 : fmt::format("{} is not a number in {:g} .. {:g}", text, least, most);
  };
  return CLI::Validator(check, fmt::format("in [{:g}, {:g}]", least, most));
}

/// Adds an option that is a number in [least, most]. A default of 0 means that the option is not
/// given; help then shows no default.
template <typename T>
CLI::Option* number(CLI::App& verb, const char* name, T& value, std::type_identity_t<T> least,
                    std::type_identity_t<T> most, const char* meaning) {
  CLI::Option* option = verb.add_option(name, value, meaning);
  if constexpr (std::is_floating_point_v<T>) {
    option->check(finite_range(least, most));
  } else {
    option->check(CLI::Range(least, most));
  }
  return value == 0 ? option : option->capture_default_str();
}

}  // namespace distca::cli
