#pragma once
// How a model stretches RoPE beyond the lengths that it was first trained with: `rope_parameters`
// of Hugging Face's config.json (`rope_scaling` in transformers 4), which says a type and its
// numbers. Frequencies are those of transformers, computed in double. Any thread may call these
// functions.
//
//     const std::string text = R"({"rope_type": "linear", "factor": 2})";
//     const RopeScaling scaling = parse_rope_scaling(text, "");
//     const double attention_factor = scaling.apply(frequencies, theta);

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/json.h"

namespace distca {

struct RopeScaling {
  enum class Type : uint8_t { kDefault, kLinear, kLlama3, kYarn } type = Type::kDefault;
  double factor = 1;
  int64_t original_max_position_embeddings = 0;      // tokens; llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // rotations; yarn
  std::optional<double> attention_factor;            // yarn; else it follows from `factor`
  bool truncate = true;  // yarn: the ramp begins and ends at whole pairs

  /// Stretches frequencies [head_dim / 2] (radians a position), which are those of `theta`. Returns
  /// what cosines and sines are multiplied with.
  double apply(std::span<double> frequencies, double theta) const;
  /// One text for all spellings of the same scaling; it is "" for the default.
  std::string text() const;
  /// `rope_scaling` of a config.json in which every version of transformers reads this scaling;
  /// null for the default. That of yarn does not say original_max_position_embeddings, from which
  /// some versions compute another factor: max_position_embeddings has to be this length.
  Json to_hugging_face() const;
  /// "", or words that say which versions of transformers compute other frequencies in any family
  /// (LlamaConfig::read_otherwise has those of one family, too).
  std::string read_otherwise() const;
  bool operator==(const RopeScaling&) const = default;
};

/// Reads an object of config.json without rope_theta, as transformers does. A field that its type
/// does not have is refused, unless it is one that transformers ignores: `notes` then gets a line.
/// `length` is max_position_embeddings, or 0 where nobody says it: what
/// original_max_position_embeddings is where it is missing, and what yarn's factor follows from
/// where it is null. Throws Error(kConfig), which begins with `place`.
RopeScaling read_rope_scaling(const Json& json, std::string_view place, int64_t length = 0,
                              std::vector<std::string>* notes = nullptr);
/// Reads JSON text. "" is the default.
RopeScaling parse_rope_scaling(const std::string& text, std::string_view place);

}  // namespace distca
