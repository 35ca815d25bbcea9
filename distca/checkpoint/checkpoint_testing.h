#pragma once
// Small checkpoints for tests, written without the trainer.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "distca/base/file.h"
#include "distca/base/hash.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/index.h"

namespace distca {

/// Element `element` of a part of a tensor.
inline float value_of(int64_t tensor, StatePart part, int64_t element) {
  return static_cast<float>(100'000 * tensor + 10'000 * static_cast<int64_t>(part) + element);
}

inline std::vector<StoredTensor> some_tensors() {
  return {{.name = "embed.weight", .shape = {70, 100}},
          {.name = "norm.weight", .shape = {100}},
          {.name = "head.weight", .shape = {12, 100}}};
}

/// Writes files with the pieces of `index` into the folder of an unfinished checkpoint, and sets
/// hashes and sizes.
inline void write_pieces(const std::filesystem::path& run, CheckpointIndex& index) {
  index.files.clear();
  for (const StoredPiece& piece : index.pieces) index.files[piece.file] = 0;
  for (auto& [name, size] : index.files) {
    std::vector<StoredTensor> stored;
    std::string data;
    for (StoredPiece& piece : index.pieces) {
      if (piece.file != name) continue;
      const StoredTensor& tensor = index.tensors[piece.tensor];
      const int64_t columns = piece.box.back().size();
      const int64_t first_row = piece.box.size() == 2 ? piece.box[0].begin : 0;
      std::vector<float> values;
      for (int64_t i = piece.range.begin; i < piece.range.end; ++i) {
        values.push_back(value_of(piece.tensor, piece.part,
                                  (first_row + i / columns) * tensor.shape.back() +
                                      piece.box.back().begin + i % columns));
      }
      const auto bytes = std::as_bytes(std::span(values));
      piece.hash = hash_words(bytes);
      stored.push_back(stored_tensor(index, piece));
      data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    const std::string file = safetensors_header(stored, {}) + data;
    size = static_cast<int64_t>(file.size());
    write_file_atomically(unfinished_checkpoint(run, index.step) / name, file);
  }
}

/// The index of some_tensors(), owned evenly by `owners` ranks, with its files written.
inline CheckpointIndex write_unfinished(const std::filesystem::path& run, int64_t step,
                                        int owners = 2) {
  CheckpointIndex index{.step = step, .updates = step, .tensors = some_tensors()};
  index.hugging_face = {{"model_type", "llama"},    {"hidden_size", 104},
                        {"vocab_size", 70},         {"num_hidden_layers", 1},
                        {"num_attention_heads", 1}, {"intermediate_size", 12}};
  for (int owner = 0; owner < owners; ++owner) {
    for (const StoredPiece& piece :
         owned_pieces(index.tensors, owner, owners, fmt::format("rank_{}.safetensors", owner)))
      index.pieces.push_back(piece);
  }
  write_pieces(run, index);
  return index;
}

/// A complete checkpoint; returns its folder.
inline std::filesystem::path write_checkpoint(const std::filesystem::path& run, int64_t step,
                                              int owners = 2) {
  complete_checkpoint(run, write_unfinished(run, step, owners));
  return complete_checkpoints(run).back().folder;
}

}  // namespace distca
