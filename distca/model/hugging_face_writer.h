#pragma once
// Writes a model as a folder of Hugging Face: config.json, the weights as model.safetensors or as
// shards with model.safetensors.index.json, and small files next to them.
//
//     const HuggingFaceWriter writer("exported", tensors, {.type = WeightsType::kBFloat16});
//     writer.write({.config = config_json}, [&](size_t tensor, std::span<std::byte> bytes) {
//       reader.read(tensor, bytes);
//     });
//
// Tensors are asked for one after another, and memory is that of the largest. No file has its name
// before all are written. After a failure none is there that was not before, and one that was there
// is as it was, unless the file system failed to rename. Thread rule: one
// thread.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "distca/base/integers.h"
#include "distca/base/json.h"
#include "distca/checkpoint/safetensors.h"

namespace distca {

/// In which number type weights are written. Numbers are rounded to nearest, ties to even.
enum class WeightsType : uint8_t { kAsGiven, kFloat32, kBFloat16, kFloat16 };

/// How weights lie in files.
struct WeightsLayout {
  WeightsType type = WeightsType::kAsGiven;
  /// The most bytes of the tensors of a file; a larger tensor has a file of its own. 0 means that
  /// one file has all tensors.
  int64_t max_shard_bytes = 0;
};

class HuggingFaceWriter {
 public:
  /// `tensors` are what write() asks for, in the order of the files: float32 or float64. Throws
  /// Error(kUsage) if the weights would take more than kMostShards files.
  HuggingFaceWriter(std::filesystem::path folder, std::vector<StoredTensor> tensors,
                    const WeightsLayout& layout);

  /// The path of the weights: the one file of tensors, or the index of several.
  std::filesystem::path weights() const;
  size_t num_shards() const { return shards_.size(); }
  /// The type of the weights that are written, such as "bfloat16".
  std::string type_name() const;
  /// The files that write() makes or removes: its own, and older weights in the folder, which a
  /// reader would mix with them.
  std::vector<std::filesystem::path> touched() const;

  struct Contents {
    Json config;                                     // config.json; its number type is replaced
    SafetensorsMetadata metadata;                    // metadata of each file of tensors
    std::map<std::string, std::string> beside = {};  // other files by name
  };
  /// Fills `bytes` with tensor number `tensor`, in the type that was given.
  using Read = std::function<void(size_t tensor, std::span<std::byte> bytes)>;
  /// Makes the folder where it is missing. Throws Error(kIo), and Error(kCheckpoint) with the name
  /// of a tensor that has a number too large for the type. `before_names` is called when all files
  /// are on disk and none has its name: it removes from the folder what belongs to an older model.
  void write(
      const Contents& contents, const Read& read,
      const std::function<void()>& before_names = [] {}) const;

  /// All files are open until all are written.
  static constexpr size_t kMostShards = 500;

 private:
  std::string shard_name(size_t shard) const;
  std::vector<StoredTensor> tensors_of(size_t shard) const;
  Json index() const;
  void write_shard(size_t shard, const SafetensorsMetadata& metadata, const Read& read,
                   AtomicFile& file) const;
  std::vector<std::filesystem::path> own_files() const;
  std::vector<std::filesystem::path> older_weights() const;

  std::filesystem::path folder_;
  std::vector<StoredTensor> given_, stored_;  // tensors as they are read, and as they are written
  std::vector<Range> shards_;                 // the tensors of each file
};

}  // namespace distca
