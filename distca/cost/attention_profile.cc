#include "distca/cost/attention_profile.h"

#include <fmt/format.h>

#include <filesystem>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/hash.h"
#include "distca/base/json_field.h"
#include "distca/batch/document.h"

namespace distca {
namespace {

// The name and the versions of the JSON format (docs/profile_format.md).
constexpr const char* kFormat = "distca-attention-profile";
constexpr int64_t kVersion = 3;
constexpr int64_t kOldestVersion = 1;  // without peak_mflops; 2: without kernels

constexpr int64_t kMostNs = int64_t{1} << 50;  // 13 days
constexpr int64_t kMostMflops = int64_t{1} << 50;
constexpr size_t kMostPoints = 256;
constexpr int64_t kMostSize = 1 << 20;

std::string grid_fault(const char* name, const std::vector<int64_t>& tokens) {
  if (tokens.empty() || tokens.size() > kMostPoints) {
    return fmt::format("{} has {} entries: 1 to {} wanted", name, tokens.size(), kMostPoints);
  }
  int64_t least = 1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < least || tokens[i] > kMostTokens) {
      return fmt::format("{}[{}] is {}: {} to {} wanted, ascending", name, i, tokens[i], least,
                         kMostTokens);
    }
    least = tokens[i] + 1;
  }
  return {};
}

std::string times_fault(const char* name, const AttentionProfile& profile,
                        const std::vector<int64_t>& ns) {
  const size_t columns = profile.kv_tokens.size();
  if (ns.size() != profile.q_tokens.size() * columns) {
    return fmt::format("{} has {} entries: {} x {} wanted", name, ns.size(),
                       profile.q_tokens.size(), columns);
  }
  for (size_t i = 0; i < ns.size(); ++i) {
    const bool used = profile.q_tokens[i / columns] <= profile.kv_tokens[i % columns];
    if (ns[i] < (used ? 1 : 0) || ns[i] > (used ? kMostNs : 0)) {
      return fmt::format("{}[{}] is {}: {} wanted for {} queries of {} keys", name, i, ns[i],
                         used ? fmt::format("1 to {}", kMostNs) : "0",
                         profile.q_tokens[i / columns], profile.kv_tokens[i % columns]);
    }
  }
  return {};
}

std::string kernels_fault(const char* name, const std::vector<std::string>& kernels) {
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i] != "aten" && kernels[i] != "fa4")
      return fmt::format("{}[{}] is \"{}\": aten or fa4 wanted", name, i, kernels[i]);
  }
  return {};
}

std::string shape_fault(const AttentionShape& shape) {
  for (const auto& [name, value] :
       {std::pair{"num_heads", shape.num_heads}, std::pair{"num_kv_heads", shape.num_kv_heads},
        std::pair{"head_dim_qk", shape.head_dim_qk}, std::pair{"head_dim_v", shape.head_dim_v}}) {
    if (value < 1 || value > kMostSize) {
      return fmt::format("shape.{} is {}: 1 to {} wanted", name, value, kMostSize);
    }
  }
  if (shape.mask.window_left != -1) {
    return fmt::format("shape.window_left is {}: -1 wanted (profiles have no window)",
                       shape.mask.window_left);
  }
  return {};
}

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
  if (version <= 2) return;
  visit("forward_kernels", profile.forward_kernels);
  visit("backward_kernels", profile.backward_kernels);
}

template <typename Visit, typename T>
void visit_shape(Visit visit, T& shape) {
  visit("num_heads", shape.num_heads);
  visit("num_kv_heads", shape.num_kv_heads);
  visit("head_dim_qk", shape.head_dim_qk);
  visit("head_dim_v", shape.head_dim_v);
  visit("element_bytes", shape.type);
}

}  // namespace

std::string profile_name(const AttentionProfile& profile) {
  Fnv1a64 hash;
  const AttentionShape& shape = profile.shape;
  for (const int64_t value : {shape.num_heads, shape.num_kv_heads, shape.head_dim_qk,
                              shape.head_dim_v, shape.element_bytes()}) {
    hash.add(std::to_string(value) + " ");
  }
  for (const auto* values :
       {&profile.q_tokens, &profile.kv_tokens, &profile.forward_ns, &profile.backward_ns}) {
    for (const int64_t value : *values) hash.add(std::to_string(value) + " ");
    hash.add("\n");
  }
  for (const auto* kernels : {&profile.forward_kernels, &profile.backward_kernels}) {
    for (const std::string& kernel : *kernels) hash.add(kernel + " ");
  }
  return fmt::format("{} {}@{:016x}", profile.machine, profile.path, hash.value());
}

std::string profile_fault(const AttentionProfile& profile) {
  for (const std::string& fault :
       {shape_fault(profile.shape), grid_fault("q_tokens", profile.q_tokens),
        grid_fault("kv_tokens", profile.kv_tokens)}) {
    if (!fault.empty()) return fault;
  }
  if (profile.q_tokens.front() > profile.kv_tokens.front() ||
      profile.q_tokens.back() > profile.kv_tokens.back()) {
    return fmt::format(
        "q_tokens runs from {} to {}, kv_tokens from {} to {}: the first and the last of q_tokens "
        "at most those of kv_tokens wanted",
        profile.q_tokens.front(), profile.q_tokens.back(), profile.kv_tokens.front(),
        profile.kv_tokens.back());
  }
  for (const std::string& fault : {times_fault("forward_ns", profile, profile.forward_ns),
                                   times_fault("backward_ns", profile, profile.backward_ns),
                                   kernels_fault("forward_kernels", profile.forward_kernels),
                                   kernels_fault("backward_kernels", profile.backward_kernels)}) {
    if (!fault.empty()) return fault;
  }
  if (profile.peak_mflops < 0 || profile.peak_mflops > kMostMflops) {
    return fmt::format("peak_mflops is {}: 0 (none stated) to {} wanted", profile.peak_mflops,
                       kMostMflops);
  }
  return {};
}

std::string profile_to_json(const AttentionProfile& profile) {
  Json json{{"format", kFormat}, {"version", kVersion}};
  visit_profile(JsonWriter{json}, profile, kVersion);
  visit_shape(JsonWriter{json["shape"]}, profile.shape);
  return canonical_json(json);
}

AttentionProfile profile_from_json(std::string_view json, std::string_view name) {
  const Json parsed = parse_json(json, name);
  const JsonField root(parsed, name, ErrorKind::kData);
  root["format"].expect(root["format"].text() == kFormat, fmt::format("\"{}\"", kFormat));
  const int64_t version = root["version"].integer();
  root["version"].expect(version >= kOldestVersion && version <= kVersion,
                         fmt::format("{} to {}", kOldestVersion, kVersion));
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

std::shared_ptr<const AttentionProfile> profile_by_name(const std::string& name) {
  if (name == "pairs") return nullptr;
  if (name == "h200") return std::make_shared<const AttentionProfile>(h200_profile());
  std::error_code denied;  // set if the file cannot be looked at; read_file() then says why
  if (!std::filesystem::exists(name, denied) && !denied) {
    throw Error(ErrorKind::kData, "profile {}: no such file, and the only known name is h200",
                name);
  }
  return std::make_shared<const AttentionProfile>(
      profile_from_json(read_file(name, ErrorKind::kData), name));
}

}  // namespace distca
