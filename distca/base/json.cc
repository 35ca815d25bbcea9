#include "distca/base/json.h"

#include "distca/base/file.h"

namespace distca {

Json parse_json(std::string_view text, std::string_view name, ErrorKind kind,
                const Json::parser_callback_t& filter) {
  try {
    return Json::parse(text, filter);
  } catch (const Json::parse_error& error) {
    std::string_view reason =
        error.what();  // "[json.exception...] parse error at line 1, column 2: ..."
    if (const size_t tag = reason.find("] "); tag != std::string_view::npos) {
      reason.remove_prefix(tag + 2);
    }
    throw Error(kind, "{}: byte {} is not JSON: {}", name, error.byte, reason);
  }
}

Json read_json(const std::filesystem::path& path, ErrorKind kind) {
  return parse_json(read_file(path, kind), path.string(), kind);
}

std::string canonical_json(const Json& value) { return value.dump() + "\n"; }

}  // namespace distca
