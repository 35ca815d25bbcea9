#include "distca/base/env.h"

#include <charconv>
#include <cstdlib>

#include "distca/base/error.h"

namespace distca {

std::optional<std::string> env_string(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int64_t> env_integer(const char* name) {
  const std::optional<std::string> text = env_string(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, code] = std::from_chars(text->data(), end, value);
  if (code != std::errc() || stop != end) {
    throw Error(ErrorKind::kUsage, "environment variable {}=\"{}\": expected an integer", name,
                *text);
  }
  return value;
}

}  // namespace distca
