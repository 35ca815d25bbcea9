#include "distca/base/json.h"

#include "distca/base/file.h"

namespace distca {

Json parse_json(std::string_view text, std::string_view name, ErrorKind kind) {
  // Writing a value calls itself for each list or object within another.
  const auto check_depth = [&](int depth, Json::parse_event_t, const Json&) {
    DISTCA_THROW_IF(depth > kMostJsonDepth, kind,
                    "{}: a value lies within more than {} lists and objects", name, kMostJsonDepth);
    return true;
  };
  try {
    return Json::parse(text, check_depth);
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
