#include <algorithm>
#include <string>
#include <vector>

#include "distca/config/config.h"
#include "tests/fuzz/fuzzing.h"
#include "tests/fuzz/targets.h"

namespace distca::fuzz {
namespace {

Config config_of(std::string_view toml, const std::vector<std::string>& overrides = {}) {
  return load_config(folder().write("config.toml", toml), overrides);
}

}  // namespace

bool config(std::span<const uint8_t> bytes) {
  const std::string_view text = as_text(bytes);
  const std::string_view toml = text.substr(0, text.find('\0'));
  std::vector<std::string> overrides;
  for (size_t at = toml.size(); at < text.size();) {
    const size_t end = std::min(text.find('\0', at + 1), text.size());
    overrides.emplace_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  const auto read = unless_refused([&] { return config_of(toml, overrides); });
  if (!read) return false;
  const std::string recorded = recorded_config(*read);
  DISTCA_CHECK(recorded_config(config_of(recorded)) == recorded,
               "a configuration that was read, written and read again is another one: {}",
               recorded);
  return true;
}

}  // namespace distca::fuzz
