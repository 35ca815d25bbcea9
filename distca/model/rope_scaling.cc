#include "distca/model/rope_scaling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "distca/base/json_field.h"

namespace distca {
namespace {

using Type = RopeScaling::Type;
constexpr const char* kLength = "original_max_position_embeddings";
constexpr int64_t kMostTokens = int64_t{1} << 40;
constexpr double kMostFactor = 1e9;  // the largest factor or number of rotations

/// Fields of yarn that others write and that transformers does not read.
constexpr std::array<std::string_view, 3> kIgnoredByYarn = {"attn_factor", "extrapolation_factor",
                                                            "finetuned"};

/// How config.json says a type.
struct TypeInfo {
  std::string name;
  std::vector<std::string> fields;  // but for the type's own
};
/// [Type]
const std::vector<TypeInfo>& types() {
  static const std::vector<TypeInfo> all = {
      {"default", {}},
      {"linear", {"factor"}},
      {"llama3", {"factor", kLength, "low_freq_factor", "high_freq_factor"}},
      {"yarn",
       {"factor", kLength, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
        "truncate"}}};
  return all;
}
const TypeInfo& info_of(Type type) { return types()[static_cast<size_t>(type)]; }

bool has(const Json& json, const char* key) { return json.contains(key) && !json[key].is_null(); }

/// transformers 4 also called the field "type".
Type read_type(const Json& json, const JsonField& field) {
  const char* const key = has(json, "rope_type") ? "rope_type" : "type";
  if (!has(json, key)) return Type::kDefault;
  const std::string word = field[key].text();
  const auto found = std::ranges::find(types(), word, &TypeInfo::name);
  field[key].expect(found != types().end(), "default, linear, llama3 or yarn");
  if (has(json, "type")) field["type"].expect(json["type"] == word, "as rope_type");
  return static_cast<Type>(found - types().begin());
}

double positive(const JsonField& field, const char* key) {
  const double value = field[key].number();
  field[key].expect(value > 0, "above 0");
  field[key].expect(value <= kMostFactor, "at most 1e9");
  return value;
}

/// Returns true if yarn reads a number there. transformers takes 0 for one that is not given.
bool is_given(const Json& json, const char* key) { return has(json, key) && json[key] != 0; }

/// The factor by which yarn multiplies cosines and sines where attention_factor is not given.
double yarn_attention(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

void read_yarn(const Json& json, const JsonField& field, RopeScaling* scaling) {
  if (is_given(json, "beta_fast")) scaling->beta_fast = positive(field, "beta_fast");
  if (is_given(json, "beta_slow")) scaling->beta_slow = positive(field, "beta_slow");
  // transformers takes null for false here.
  if (json.contains("truncate"))
    scaling->truncate = has(json, "truncate") && field["truncate"].flag();
  if (is_given(json, "mscale") && is_given(json, "mscale_all_dim")) {
    scaling->attention_factor = yarn_attention(scaling->factor, positive(field, "mscale")) /
                                yarn_attention(scaling->factor, positive(field, "mscale_all_dim"));
  }
  if (has(json, "attention_factor"))
    scaling->attention_factor = positive(field, "attention_factor");
}

/// Throws if the object has a field that is not one of this type.
void check_fields(const Json& json, std::string_view place, Type type,
                  std::vector<std::string>* notes) {
  for (const auto& [key, value] : json.items()) {
    if (key == "rope_type" || key == "type" || std::ranges::count(info_of(type).fields, key) > 0)
      continue;
    const bool is_ignored = value.is_null() || value == false ||
                            (type == Type::kYarn && std::ranges::count(kIgnoredByYarn, key) > 0);
    DISTCA_THROW_IF(!is_ignored, ErrorKind::kConfig, "{}: {} is not known for this rope_type",
                    place, key);
    if (notes) {
      notes->push_back(fmt::format("{}: {} = {} is left out of account, as by transformers", place,
                                   key, value.dump()));
    }
  }
}

void apply_llama3(const RopeScaling& s, std::span<double> frequencies) {
  const auto length = static_cast<double>(s.original_max_position_embeddings);
  for (double& frequency : frequencies) {
    const double turns = length * frequency / (2 * std::numbers::pi);  // within that length
    const double smooth = std::clamp(
        (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
    frequency *= (1 - smooth) / s.factor + smooth;
  }
}

void apply_yarn(const RopeScaling& s, std::span<double> frequencies, double theta) {
  const double dim = 2 * static_cast<double>(frequencies.size());
  const auto length = static_cast<double>(s.original_max_position_embeddings);
  // The pair that turns so often within that length.
  const auto pair_of = [&](double turns) {
    return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = pair_of(s.beta_fast), high = pair_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // the amount that transformers adds
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= stretched / s.factor + (1 - stretched);
  }
}

}  // namespace

double RopeScaling::apply(std::span<double> frequencies, double theta) const {
  if (type == Type::kLinear) {
    for (double& frequency : frequencies) frequency /= factor;
  } else if (type == Type::kLlama3) {
    apply_llama3(*this, frequencies);
  } else if (type == Type::kYarn) {
    apply_yarn(*this, frequencies, theta);
    return attention_factor.value_or(yarn_attention(factor, 1));
  }
  return 1;
}

std::string RopeScaling::text() const {
  if (type == Type::kDefault) return "";
  Json all = {{"factor", factor},
              {kLength, original_max_position_embeddings},
              {"low_freq_factor", low_freq_factor},
              {"high_freq_factor", high_freq_factor},
              {"beta_fast", beta_fast},
              {"beta_slow", beta_slow},
              {"truncate", truncate}};
  if (attention_factor) all["attention_factor"] = *attention_factor;
  const auto& [name, fields] = info_of(type);
  Json json = {{"rope_type", name}};
  for (const std::string& field : fields)
    if (all.contains(field)) json[field] = all[field];
  return json.dump();
}

Json RopeScaling::to_hugging_face() const {
  if (type == Type::kDefault) return nullptr;
  Json json = Json::parse(text());
  if (type == Type::kYarn) {
    json.erase(kLength);
    json["attention_factor"] = attention_factor.value_or(yarn_attention(factor, 1));
  }
  return json;
}

std::string RopeScaling::read_otherwise() const {
  if (type != Type::kYarn || truncate) return "";
  return "truncate = false of yarn is not known to transformers before 4.55, whose frequencies "
         "differ";
}

RopeScaling read_rope_scaling(const Json& json, std::string_view place, int64_t length,
                              std::vector<std::string>* notes) {
  const JsonField field(json, place, ErrorKind::kConfig);
  field.expect(json.is_object(), "an object");
  RopeScaling scaling{.type = read_type(json, field)};
  check_fields(json, place, scaling.type, notes);
  if (scaling.type == Type::kDefault) return scaling;
  if (scaling.type == Type::kLinear) {
    scaling.factor = positive(field, "factor");
    return scaling;
  }
  scaling.original_max_position_embeddings =
      length > 0 && !has(json, kLength) ? length : field[kLength].whole(1, kMostTokens);
  if (scaling.type == Type::kYarn) {
    const bool follows = length > 0 && json.contains("factor") && !has(json, "factor");
    scaling.factor = follows ? static_cast<double>(length) /
                                   static_cast<double>(scaling.original_max_position_embeddings)
                             : positive(field, "factor");
    read_yarn(json, field, &scaling);
    return scaling;
  }
  scaling.factor = positive(field, "factor");
  scaling.low_freq_factor = positive(field, "low_freq_factor");
  scaling.high_freq_factor = positive(field, "high_freq_factor");
  field["high_freq_factor"].expect(scaling.high_freq_factor > scaling.low_freq_factor,
                                   "above low_freq_factor");
  return scaling;
}

RopeScaling parse_rope_scaling(const std::string& text, std::string_view place) {
  if (text.empty()) return {};
  return read_rope_scaling(parse_json(text, place, ErrorKind::kConfig), place);
}

}  // namespace distca
