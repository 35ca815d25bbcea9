#include "distca/model/rope_scaling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "distca/base/json_field.h"

namespace distca {
namespace {

using Type = RopeScaling::Type;
constexpr std::array<std::pair<const char*, Type>, 4> kTypes = {{{"default", Type::kDefault},
                                                                 {"linear", Type::kLinear},
                                                                 {"llama3", Type::kLlama3},
                                                                 {"yarn", Type::kYarn}}};
constexpr int64_t kMostTokens = int64_t{1} << 40;

std::vector<std::string_view> fields_of(Type type) {
  switch (type) {
    case Type::kDefault:
      return {};
    case Type::kLinear:
      return {"factor"};
    case Type::kLlama3:
      return {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"};
    case Type::kYarn:
      return {"factor",           "original_max_position_embeddings",
              "attention_factor", "beta_fast",
              "beta_slow",        "mscale",
              "mscale_all_dim",   "truncate"};
  }
  return {};
}

bool has(const Json& json, const char* key) { return json.contains(key) && !json[key].is_null(); }

/// transformers 4 also called the field "type".
Type read_type(const Json& json, const JsonField& field) {
  const char* const key = has(json, "rope_type") ? "rope_type" : "type";
  if (!has(json, key)) return Type::kDefault;
  const std::string word = field[key].text();
  const auto found = std::ranges::find_if(kTypes, [&](const auto& t) { return word == t.first; });
  field[key].expect(found != kTypes.end(), "default, linear, llama3 or yarn");
  if (has(json, "type")) field["type"].expect(json["type"] == word, "as rope_type");
  return found->second;
}

double positive(const JsonField& field, const char* key) {
  const double value = field[key].number();
  field[key].expect(value > 0, "above 0");
  return value;
}

/// What yarn multiplies cosines and sines with where nobody says it.
double yarn_attention(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

void read_yarn(const Json& json, const JsonField& field, RopeScaling* scaling) {
  if (has(json, "beta_fast")) scaling->beta_fast = positive(field, "beta_fast");
  if (has(json, "beta_slow")) scaling->beta_slow = positive(field, "beta_slow");
  if (has(json, "truncate")) scaling->truncate = field["truncate"].flag();
  if (has(json, "mscale") && has(json, "mscale_all_dim")) {
    scaling->attention_factor = yarn_attention(scaling->factor, positive(field, "mscale")) /
                                yarn_attention(scaling->factor, positive(field, "mscale_all_dim"));
  }
  if (has(json, "attention_factor"))
    scaling->attention_factor = positive(field, "attention_factor");
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
  if (low == high) high += 0.001;  // as transformers has it
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= stretched / s.factor + (1 - stretched);
  }
}

}  // namespace

double RopeScaling::apply(std::span<double> frequencies, double theta) const {
  switch (type) {
    case Type::kDefault:
      return 1;
    case Type::kLinear:
      for (double& frequency : frequencies) frequency /= factor;
      return 1;
    case Type::kLlama3:
      apply_llama3(*this, frequencies);
      return 1;
    case Type::kYarn:
      apply_yarn(*this, frequencies, theta);
      return attention_factor.value_or(yarn_attention(factor, 1));
  }
  return 1;
}

std::string RopeScaling::text() const {
  if (type == Type::kDefault) return "";
  const auto name = std::ranges::find(kTypes, type, &std::pair<const char*, Type>::second)->first;
  Json json = {{"rope_type", name}, {"factor", factor}};
  if (type != Type::kLinear)
    json["original_max_position_embeddings"] = original_max_position_embeddings;
  if (type == Type::kLlama3) {
    json["low_freq_factor"] = low_freq_factor;
    json["high_freq_factor"] = high_freq_factor;
  }
  if (type == Type::kYarn) {
    json["beta_fast"] = beta_fast;
    json["beta_slow"] = beta_slow;
    json["truncate"] = truncate;
    if (attention_factor) json["attention_factor"] = *attention_factor;
  }
  return json.dump();
}

RopeScaling read_rope_scaling(const Json& json, std::string_view place, int64_t length) {
  const JsonField field(json, place, ErrorKind::kConfig);
  field.expect(json.is_object(), "an object");
  RopeScaling scaling{.type = read_type(json, field)};
  std::vector<std::string_view> known = fields_of(scaling.type);
  for (const auto& [key, value] : json.items()) {
    DISTCA_THROW_IF(key != "rope_type" && key != "type" && !std::ranges::count(known, key),
                    ErrorKind::kConfig, "{}: {} is not known for this rope_type", place, key);
  }
  if (scaling.type == Type::kDefault) return scaling;
  scaling.factor = positive(field, "factor");
  if (scaling.type == Type::kLinear) return scaling;
  constexpr const char* kLength = "original_max_position_embeddings";
  scaling.original_max_position_embeddings =
      length > 0 && !has(json, kLength) ? length : field[kLength].integer(1, kMostTokens);
  if (scaling.type == Type::kYarn) {
    read_yarn(json, field, &scaling);
    return scaling;
  }
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
