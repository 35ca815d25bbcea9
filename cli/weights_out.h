#pragma once
// The common part of verbs that write a folder of Hugging Face: their options, and the files.
//
//     WeightsOut out;
//     out.add_options(*verb);                       // --out, --dtype, --max-shard-gb, --overwrite
//     out.write({.tensors = ..., .contents = ..., .read = ...});

#include <CLI/CLI.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "distca/model/hugging_face_writer.h"

namespace distca::cli {

/// A model that is to be written.
struct ModelToWrite {
  std::vector<StoredTensor> tensors;  // types and shapes as `read` gives them
  HuggingFaceWriter::Contents contents;
  HuggingFaceWriter::Read read;
};

class WeightsOut {
 public:
  void add_options(CLI::App& verb);
  /// Returns true if --dtype or --max-shard-gb says how the weights are to be written.
  bool changes_weights() const { return !dtype_.empty() || max_shard_gb_ > 0; }
  const std::filesystem::path& folder() const { return out_; }
  /// Throws Error(kUsage) if a file is there already, unless --overwrite is given, and what
  /// HuggingFaceWriter throws. Prints `begin` and then what was written.
  void write(const std::string& begin, const ModelToWrite& model) const;

 private:
  std::filesystem::path out_;
  std::string dtype_;  // Empty means as given.
  double max_shard_gb_ = 0;
  bool overwrite_ = false;
};

}  // namespace distca::cli
