// The profile as JSON (docs/profile_format.md).

#include "distca/base/error.h"
#include "distca/base/json_field.h"
#include "distca/cost/attention_profile.h"

namespace distca {
namespace {

constexpr const char* kFormat = "distca-attention-profile";
constexpr int64_t kVersion = 2;
constexpr int64_t kOldestVersion = 1;  // without peak_mflops

// The fields of each struct, once for writing, reading and what else is refused.

template <typename Visit, typename T>
void visit_profile(Visit visit, T& profile, int64_t version) {
  visit("machine", profile.machine);
  visit("path", profile.path);
  visit("q_tokens", profile.q_tokens);
  visit("kv_tokens", profile.kv_tokens);
  visit("forward_ns", profile.forward_ns);
  visit("backward_ns", profile.backward_ns);
  if (version > kOldestVersion) visit("peak_mflops", profile.peak_mflops);
}

template <typename Visit, typename T>
void visit_shape(Visit visit, T& shape) {
  visit("num_heads", shape.num_heads);
  visit("num_kv_heads", shape.num_kv_heads);
  visit("head_dim_qk", shape.head_dim_qk);
  visit("head_dim_v", shape.head_dim_v);
  visit("element_bytes", shape.element_bytes);
}

}  // namespace

std::string profile_to_json(const AttentionProfile& profile) {
  Json json{{"format", kFormat}, {"version", kVersion}};
  visit_profile(JsonWriter{json}, profile, kVersion);
  visit_shape(JsonWriter{json["shape"]}, profile.shape);
  return canonical_json(json);
}

AttentionProfile profile_from_json(std::string_view json, std::string_view name) {
  const Json parsed = parse_json(json, name);
  const JsonField root(parsed, name, ErrorKind::kData);
  if (root["format"].text() != kFormat) {
    root["format"].expect(false, fmt::format("\"{}\"", kFormat));
  }
  const int64_t version = root["version"].integer();
  if (version < kOldestVersion || version > kVersion) {
    root["version"].expect(false, fmt::format("{} to {}", kOldestVersion, kVersion));
  }
  AttentionProfile profile;
  std::vector<std::string_view> fields{"format", "version", "shape"}, shape_fields;
  visit_profile(JsonNames{fields}, profile, version);
  root.only(fields, version);
  const JsonField shape = root["shape"];
  visit_shape(JsonNames{shape_fields}, profile.shape);
  shape.only(shape_fields, version);
  visit_shape(JsonReader{shape}, profile.shape);
  visit_profile(JsonReader{root}, profile, version);
  const std::string fault = profile_fault(profile);
  if (!fault.empty()) throw Error(ErrorKind::kData, "{}: {}", name, fault);
  return profile;
}

}  // namespace distca
