#pragma once
// The index of a checkpoint, checkpoint.json: which training state it holds, and where every piece
// of every tensor lies (docs/checkpoints.md describes the file).
//
// Each rank writes the pieces that it owns to a file of its own. A piece is a part of a box of a
// full tensor: the box is what a rank holds of the tensor (all of it today, its slice under tensor
// parallelism), and the range counts the elements of the box, row by row, that the rank owns (all
// of them, or its share among ranks that hold the same box). So any number of ranks can read what
// any other number has written.
//
//     const CheckpointIndex index = read_checkpoint_index("runs/mine/checkpoints/step_000100");
//
// Thread rule: these are plain values and functions; any thread may use them.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/integers.h"
#include "distca/base/json.h"
#include "distca/checkpoint/safetensors.h"

namespace distca {

/// The parts that are kept of every weight: the main param itself, and AdamW's two moments under
/// PyTorch's names.
enum class StatePart : uint8_t { kWeight, kExpAvg, kExpAvgSq };
inline constexpr std::array kStateParts = {StatePart::kWeight, StatePart::kExpAvg,
                                           StatePart::kExpAvgSq};
/// Returns "weight", "exp_avg" or "exp_avg_sq".
std::string_view part_name(StatePart part);

/// A part of a tensor that lies in one file.
struct StoredPiece {
  int64_t tensor = 0;  // in CheckpointIndex::tensors
  StatePart part = StatePart::kWeight;
  std::vector<Range> box;  // [dimensions of the tensor] elements
  Range range;             // elements of the box, in row-major order
  std::string file;        // in the checkpoint's folder
  uint64_t hash = 0;       // hash_words of its bytes
  bool operator==(const StoredPiece&) const = default;
};

struct CheckpointIndex {
  int64_t step = 0;     // steps that have been trained; the next one has batch `step`
  int64_t updates = 0;  // the optimizer's updates: fewer than steps if some were skipped
  std::string run_id;   // id of the start that wrote it. Empty if nobody gave one.
  /// Every key of the configuration as text, by its name, such as "train.steps".
  std::map<std::string, std::string> config;
  /// Other facts that decide the bits of a step: versions, kernel, numbers of ranks.
  std::map<std::string, std::string> machine;
  std::string data;                    // contents of the data set (DataBlend::summary)
  Json trainer = Json::object();       // measurements and counts of the trainer (train/resume.h)
  Json hugging_face = Json::object();  // the model's config.json
  std::vector<StoredTensor> tensors;   // in the order of the model's weight table
  std::vector<StoredPiece> pieces;
  std::map<std::string, int64_t> files;  // bytes of every file with pieces
};

/// The box that is all of a tensor.
std::vector<Range> whole_box(const StoredTensor& tensor);
/// The name of a piece within its file: the tensor's, followed by the part, box and range where
/// they are not the usual ones.
std::string stored_name(const CheckpointIndex& index, const StoredPiece& piece);
/// The piece as its file describes it.
StoredTensor stored_tensor(const CheckpointIndex& index, const StoredPiece& piece);

/// The pieces that owner `owner` of `num_owners` writes to `file`, in the order of the file, if all
/// owners hold all tensors. The elements of all tensors, end to end, are divided evenly at
/// multiples of kOwnedBlock. An owner may own nothing. Hashes are not set.
std::vector<StoredPiece> owned_pieces(const std::vector<StoredTensor>& tensors, int owner,
                                      int num_owners, const std::string& file);
inline constexpr int64_t kOwnedBlock = 4096;  // elements

/// Adds the pieces of the tensors that lie in `owned`, where tensor i begins at begins[i]: elements
/// of a layout in which all tensors stand end to end, perhaps with gaps.
void add_pieces(const std::vector<StoredTensor>& tensors, const std::vector<int64_t>& begins,
                const Range& owned, const std::string& file, std::vector<StoredPiece>& pieces);

/// Throws Error(kCheckpoint) naming the first tensor of which an element is in no piece, or in two.
/// `name` is the index's file.
void check_coverage(const CheckpointIndex& index, std::string_view name);

Json to_json(const CheckpointIndex& index);
/// Throws Error(kCheckpoint) in one line that names the file and the field.
CheckpointIndex parse_checkpoint_index(std::string_view text, std::string_view name);
/// Reads checkpoint.json of a checkpoint's folder and checks its coverage.
CheckpointIndex read_checkpoint_index(const std::filesystem::path& folder);

inline constexpr const char* kIndexFile = "checkpoint.json";

}  // namespace distca
