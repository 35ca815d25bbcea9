#include "distca/base/json.h"

#include "distca/base/file.h"

namespace distca {
namespace {

/// Returns true if a value lies within more than kMostJsonDepth lists and objects. The text is read
/// in one pass. (A callback of the parser would be asked for every value, and the parser would then
/// look through all of a list's elements whenever one of them ends.) For a text that is not JSON,
/// the answer may be either.
bool lies_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
      if (depth > kMostJsonDepth) return true;
      if (c == '[' || c == '{') ++depth;
      in_string = c == '"';
    }
  }
  return false;
}

}  // namespace

Json parse_json(std::string_view text, std::string_view name, ErrorKind kind) {
  // Writing a value calls itself for each list or object within another.
  DISTCA_THROW_IF(lies_too_deep(text), kind,
                  "{}: a value lies within more than {} lists and objects", name, kMostJsonDepth);
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    std::string_view reason =
        error.what();  // "[json.exception...] parse error at line 1, column 2: ..."
    if (const size_t tag = reason.find("] "); tag != std::string_view::npos) {
      reason.remove_prefix(tag + 2);
    }
    const auto* const fault = dynamic_cast<const Json::parse_error*>(&error);
    DISTCA_THROW_IF(fault != nullptr, kind, "{}: byte {} is not JSON: {}", name, fault->byte,
                    reason);
    throw Error(kind, "{}: not JSON that can be read: {}", name, reason);  // a number of 400 digits
  }
}

Json read_json(const std::filesystem::path& path, ErrorKind kind) {
  return parse_json(read_file(path, kind), path.string(), kind);
}

std::string canonical_json(const Json& value) { return value.dump() + "\n"; }

}  // namespace distca
