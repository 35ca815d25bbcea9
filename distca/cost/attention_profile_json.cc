// The profile as JSON (docs/profile_format.md).

#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/cost/attention_profile.h"

namespace distca {
namespace {

constexpr const char* kFormat = "distca-attention-profile";
constexpr int64_t kVersion = 2;
constexpr int64_t kOldestVersion = 1;  // without peak_mflops

/// One object of the file; `prefix` is what its fields are called in errors, as in "shape.".
class Fields {
 public:
  Fields(const Json& json, std::string_view file, std::string prefix)
      : json_(json), file_(file), prefix_(std::move(prefix)) {
    if (!json.is_object()) {
      throw Error(ErrorKind::kData, "{}: {} must be an object", file,
                  prefix_.empty() ? "it" : prefix_.substr(0, prefix_.size() - 1));
    }
  }

  void refuse_others_than(const std::vector<std::string_view>& known, int64_t version) const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        throw Error(ErrorKind::kData, "{}: {}{} is not a field of version {}", file_, prefix_, key,
                    version);
      }
    }
  }

  const Json& at(const char* key) const {
    if (!json_.contains(key)) {
      throw Error(ErrorKind::kData, "{}: {}{} is missing", file_, prefix_, key);
    }
    return json_.at(key);
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(key, at(key), "a string");
    return at(key).get<std::string>();
  }
  int64_t integer(const char* key) const { return integer(key, at(key)); }
  std::vector<int64_t> integers(const char* key) const {
    const Json& list = at(key);
    if (!list.is_array()) refuse(key, list, "a list");
    std::vector<int64_t> values;
    for (size_t i = 0; i < list.size(); ++i) {
      values.push_back(integer(fmt::format("{}[{}]", key, i), list[i]));
    }
    return values;
  }
  [[noreturn]] void refuse(std::string_view name, const Json& value,
                           std::string_view wanted) const {
    throw Error(ErrorKind::kData, "{}: {}{} must be {}, not {}", file_, prefix_, name, wanted,
                value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60));
  }

 private:
  int64_t integer(std::string_view name, const Json& value) const {
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
    if (!fits) refuse(name, value, "an integer");
    return value.get<int64_t>();
  }

  const Json& json_;
  std::string_view file_;
  std::string prefix_;
};

}  // namespace

std::string profile_to_json(const AttentionProfile& profile) {
  const AttentionShape& shape = profile.shape;
  return canonical_json({{"format", kFormat},
                         {"version", kVersion},
                         {"machine", profile.machine},
                         {"path", profile.path},
                         {"shape",
                          {{"num_heads", shape.num_heads},
                           {"num_kv_heads", shape.num_kv_heads},
                           {"head_dim_qk", shape.head_dim_qk},
                           {"head_dim_v", shape.head_dim_v},
                           {"element_bytes", shape.element_bytes}}},
                         {"q_tokens", profile.q_tokens},
                         {"kv_tokens", profile.kv_tokens},
                         {"forward_ns", profile.forward_ns},
                         {"backward_ns", profile.backward_ns},
                         {"peak_mflops", profile.peak_mflops}});
}

AttentionProfile profile_from_json(std::string_view json, std::string_view name) {
  const Json parsed = parse_json(json, name);
  const Fields root(parsed, name, "");
  if (root.text("format") != kFormat) {
    root.refuse("format", root.at("format"), fmt::format("\"{}\"", kFormat));
  }
  const int64_t version = root.integer("version");
  if (version < kOldestVersion || version > kVersion) {
    root.refuse("version", root.at("version"), fmt::format("{} to {}", kOldestVersion, kVersion));
  }
  std::vector<std::string_view> fields{"format",   "version",   "machine",    "path",       "shape",
                                       "q_tokens", "kv_tokens", "forward_ns", "backward_ns"};
  if (version > kOldestVersion) fields.push_back("peak_mflops");
  root.refuse_others_than(fields, version);
  const Fields shape(root.at("shape"), name, "shape.");
  shape.refuse_others_than(
      {"num_heads", "num_kv_heads", "head_dim_qk", "head_dim_v", "element_bytes"}, version);
  AttentionProfile profile{
      .machine = root.text("machine"),
      .path = root.text("path"),
      .shape = {.num_heads = shape.integer("num_heads"),
                .num_kv_heads = shape.integer("num_kv_heads"),
                .head_dim_qk = shape.integer("head_dim_qk"),
                .head_dim_v = shape.integer("head_dim_v"),
                .element_bytes = shape.integer("element_bytes")},
      .q_tokens = root.integers("q_tokens"),
      .kv_tokens = root.integers("kv_tokens"),
      .forward_ns = root.integers("forward_ns"),
      .backward_ns = root.integers("backward_ns"),
      .peak_mflops = version > kOldestVersion ? root.integer("peak_mflops") : 0};
  const std::string fault = profile_fault(profile);
  if (!fault.empty()) throw Error(ErrorKind::kData, "{}: {}", name, fault);
  return profile;
}

}  // namespace distca
