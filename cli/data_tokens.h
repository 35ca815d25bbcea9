#pragma once
// The part of `distca data prepare` that makes a data set of text with a tokenizer of Hugging Face.
// A program in Python tokenizes (python/distca/_tokenize.py); this process alone writes.
// Thread rule: one thread.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace distca::cli {

struct TokenizeOptions {
  std::vector<std::filesystem::path> files;
  bool by_line = true;       // a line of a file is a document, in JSON; else a file is one
  std::string key = "text";  // the text's key in a line's object
  std::string tokenizer;     // a tokenizer.json, or a folder that has one
  int64_t workers = 0;       // processes. 0 means one for each core.
  bool append_eod = true;
  std::filesystem::path out;
};

/// Writes the data set, copies the tokenizer next to it, and prints how many documents there are.
/// The files have the same bytes for every number of workers. Throws Error(kData) for what is wrong
/// with the files or the tokenizer, and then leaves nothing.
void prepare_tokens(const TokenizeOptions& options);

}  // namespace distca::cli
