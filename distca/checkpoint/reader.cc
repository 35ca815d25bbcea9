#include "distca/checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/hash.h"

namespace distca {
namespace {

/// The element of the whole tensor that a box has at a place, counted row by row.
int64_t element_at(const std::vector<Range>& box, int64_t at, const StoredTensor& tensor) {
  const Range columns = box.back();
  const int64_t first_row = box.size() == 2 ? box[0].begin : 0;
  return (first_row + at / columns.size()) * tensor.shape.back() + columns.begin +
         at % columns.size();
}

/// The elements of the whole tensor from the first to the last of some elements of a box.
Range span_of(const std::vector<Range>& box, const Range& range, const StoredTensor& tensor) {
  return {element_at(box, range.begin, tensor), element_at(box, range.end - 1, tensor) + 1};
}

/// Copies a piece's elements to their places in the whole tensor.
void place(const StoredPiece& piece, const StoredTensor& tensor, std::span<const std::byte> from,
           std::span<std::byte> out) {
  const int64_t bytes = element_bytes(tensor.type), columns = piece.box.back().size();
  int64_t at = piece.range.begin;
  while (at < piece.range.end) {
    // Whole rows of a tensor lie one after another.
    const int64_t left = piece.range.end - at;
    const int64_t run =
        columns == tensor.shape.back() ? left : std::min(columns - at % columns, left);
    std::memcpy(out.data() + element_at(piece.box, at, tensor) * bytes,
                from.data() + (at - piece.range.begin) * bytes, static_cast<size_t>(run * bytes));
    at += run;
  }
}

}  // namespace

CheckpointReader::CheckpointReader(std::filesystem::path folder)
    : folder_(std::move(folder)),
      index_(read_checkpoint_index(folder_)),
      pieces_of_(index_.tensors.size()) {
  for (const auto& [name, bytes] : index_.files) {
    const auto [file, _] = files_.emplace(name, SafetensorsFile(folder_ / name));
    DISTCA_THROW_IF(file->second.size() != bytes, ErrorKind::kCheckpoint,
                    "{}: it has {} bytes, and {} says {}", (folder_ / name).string(),
                    file->second.size(), kIndexFile, bytes);
  }
  for (size_t i = 0; i < index_.pieces.size(); ++i) {
    const StoredTensor stored = stored_tensor(index_, index_.pieces[i]);
    const std::string& file = index_.pieces[i].file;
    DISTCA_THROW_IF(files_.at(file).at(stored.name).tensor != stored, ErrorKind::kCheckpoint,
                    "{}: {} has another type or shape than {} says", (folder_ / file).string(),
                    stored.name, kIndexFile);
    pieces_of_[index_.pieces[i].tensor].push_back(i);
  }
}

std::span<const std::byte> CheckpointReader::checked_bytes(size_t i) const {
  const StoredPiece& piece = index_.pieces[i];
  const SafetensorsFile& file = files_.at(piece.file);
  const std::string name = stored_name(index_, piece);
  const std::span<const std::byte> bytes = file.bytes(file.at(name));
  bytes_read_ += static_cast<int64_t>(bytes.size());
  const uint64_t hash = hash_words(bytes);
  DISTCA_THROW_IF(hash != piece.hash, ErrorKind::kCheckpoint,
                  "{}: {} is damaged: its bytes have the hash {:016x}, and {} says {:016x}",
                  (folder_ / piece.file).string(), name, hash, kIndexFile, piece.hash);
  return bytes;
}

int64_t CheckpointReader::find(const StoredTensor& wanted) const {
  const auto found = std::ranges::find(index_.tensors, wanted.name, &StoredTensor::name);
  DISTCA_THROW_IF(
      found == index_.tensors.end() || found->shape != wanted.shape || found->type != wanted.type,
      ErrorKind::kCheckpoint, "{}: it has no {} of the shape and type that this model has",
      folder_.string(), wanted.name);
  return found - index_.tensors.begin();
}

void CheckpointReader::read(int64_t tensor, StatePart part, std::span<std::byte> out) const {
  const StoredTensor& whole = index_.tensors[tensor];
  read(tensor, part, whole_box(whole), {{0, whole.numel()}}, out);
}

void CheckpointReader::read(int64_t tensor, StatePart part, const std::vector<Range>& box,
                            const std::vector<Range>& wanted, std::span<std::byte> out) const {
  const StoredTensor& whole = index_.tensors[tensor];
  DISTCA_CHECK_EQ(static_cast<int64_t>(out.size()), whole.bytes());
  for (const size_t i : pieces_of_[tensor]) {
    const StoredPiece& piece = index_.pieces[i];
    if (piece.part != part || intersect(piece.box.back(), box.back()).empty()) continue;
    const Range span = span_of(piece.box, piece.range, whole);
    const auto meets = [&](const Range& r) {
      return !intersect(span_of(box, r, whole), span).empty();
    };
    if (std::ranges::any_of(wanted, meets)) place(piece, whole, checked_bytes(i), out);
  }
}

void CheckpointReader::check() const {
  for (size_t i = 0; i < index_.pieces.size(); ++i) checked_bytes(i);
}

}  // namespace distca
