#pragma once
// JSON, as all rooms read and write it. An object keeps its keys sorted (std::map), so equal values
// have equal bytes. Any thread may call these functions.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "distca/base/error.h"

namespace distca {

using Json = nlohmann::json;

/// Parses `text`. Throws Error(kind) with `name` (usually a file), the byte where the first fault
/// is, and what was expected there; or says what no double can hold, or that a value lies within
/// too many lists and objects. Takes time in proportion to the text's length.
Json parse_json(std::string_view text, std::string_view name, ErrorKind kind = ErrorKind::kData);
inline constexpr int kMostJsonDepth = 100;
/// Reads and parses a whole file. Throws like parse_json.
Json read_json(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kData);
/// Writes JSON with sorted keys, no white space, and one newline at the end. Equal values give
/// equal bytes.
std::string canonical_json(const Json& value);

}  // namespace distca
