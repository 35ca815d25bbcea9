#pragma once
// JSON as every room reads and writes it. Objects keep their keys sorted (std::map), so the same
// value gives the same bytes. Any thread.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "distca/base/error.h"

namespace distca {

using Json = nlohmann::json;

/// Throws Error(kind) naming `name` (a file, usually), the byte of the first fault and what was
/// expected there. `filter`: nlohmann's parser callback, which sees each value and may drop it.
Json parse_json(std::string_view text, std::string_view name, ErrorKind kind = ErrorKind::kData,
                const Json::parser_callback_t& filter = nullptr);
/// Reads and parses a whole file; errors as above.
Json read_json(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kData);
/// Sorted keys, no white space but one final newline: equal values give equal bytes.
std::string canonical_json(const Json& value);

}  // namespace distca
