#pragma once
// What to say of a configuration key that does not exist: which key was probably meant. It knows
// the words of Megatron-LM, TorchTitan and Hugging Face and the keys of earlier versions, and it
// recognises misspellings. Any thread may call these functions.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/train/config.h"

namespace distca {

/// What follows "unknown key NAME": "; did you mean optimizer.lr?", or where to look if no key is
/// near. `name` is "section.key", as it was typed.
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
