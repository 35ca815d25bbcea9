#pragma once
// Reads tensors from a checkpoint, whoever has written it and in however many pieces.
//
//     CheckpointReader reader("runs/mine/checkpoints/step_000100");
//     std::vector<float> weight(reader.index().tensors[0].numel());
//     reader.read(0, StatePart::kWeight, std::as_writable_bytes(std::span(weight)));
//
// Every byte that is read is checked against its hash. Errors are Error(kCheckpoint) and name the
// file and what is wrong with it. Thread rule: one thread.

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "distca/checkpoint/index.h"
#include "distca/checkpoint/safetensors.h"

namespace distca {

class CheckpointReader {
 public:
  /// Reads the index and opens all files. Throws if one is missing, has another size than the
  /// index says, or has other pieces.
  explicit CheckpointReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointIndex& index() const { return index_; }

  /// The tensor of this name, shape and type, in the index. Throws if there is none.
  int64_t find(const StoredTensor& wanted) const;
  /// Reads a part of a whole tensor into `out`, which must have its size.
  void read(int64_t tensor, StatePart part, std::span<std::byte> out) const;
  /// Reads, into their places in the whole tensor, only the pieces that have some of the elements
  /// `wanted` of a box of it, which are counted row by row within the box.
  void read(int64_t tensor, StatePart part, const std::vector<Range>& box,
            const std::vector<Range>& wanted, std::span<std::byte> out) const;
  /// Reads everything and checks every hash.
  void check() const;
  /// Bytes of pieces that were read so far.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  /// The bytes of a piece, as its file has them, after a look at their hash.
  std::span<const std::byte> checked_bytes(size_t piece) const;

  std::filesystem::path folder_;
  CheckpointIndex index_;
  std::map<std::string, SafetensorsFile> files_;
  std::vector<std::vector<size_t>> pieces_of_;  // [tensors] indices of index_.pieces
  mutable int64_t bytes_read_ = 0;
};

}  // namespace distca
