#pragma once
// Between a text and token ids, for `distca generate`. Thread rule: one thread a tokenizer.
//
//   const std::unique_ptr<TextTokenizer> tokenizer = tokenizer_of("runs/demo", true);
//   for (const int64_t id : following(tokenizer->ids("def "))) std::cout << tokenizer->add(id);
//   std::cout << tokenizer->rest();

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace distca::cli {

class TextTokenizer {
 public:
  virtual ~TextTokenizer() = default;
  /// The ids of a prompt in UTF-8; called once.
  virtual std::vector<int64_t> ids(const std::string& prompt) = 0;
  /// Returns what the next token adds to the text: whole characters, so sometimes nothing yet.
  virtual std::string add(int64_t id) = 0;
  /// Returns the text that was held back, at the end.
  virtual std::string rest() { return ""; }
};

/// The tokenizer of a model's folder, tokenizer.json. That of bytes needs nothing else; any other
/// one runs in Python (python_verb.h). `special`: whether it puts tokens of its own before a
/// prompt. Throws Error(kUsage) if the folder has none.
std::unique_ptr<TextTokenizer> tokenizer_of(const std::filesystem::path& folder, bool special);

/// Whose text is the ids themselves, as numbers with spaces between.
std::unique_ptr<TextTokenizer> id_words();

}  // namespace distca::cli
