#pragma once
// Guesses which configuration key was meant by one that does not exist. It knows the words of
// Megatron-LM, TorchTitan and Hugging Face and the keys of earlier versions, and it recognises
// misspellings. Any thread may call these functions.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/config/config.h"

namespace distca {

/// The text that follows "unknown key NAME", such as "; did you mean optimizer.lr?". If no key is
/// near, it says where to look. `name` is "section.key", as it was typed.
std::string unknown_key_hint(const std::string& name, const std::vector<ConfigKey>& keys);

/// A word that other projects use for one of our keys.
struct ForeignName {
  std::string_view name;       // "word" in any section, or "section.word"
  std::string_view key;        // ours
  std::string_view note = {};  // how the meanings differ; "" if they do not
};
/// All of them, sorted by name.
std::span<const ForeignName> foreign_names();

}  // namespace distca
