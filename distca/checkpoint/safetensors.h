#pragma once
// The safetensors format: tensors by name in one file, as Hugging Face reads them. A file is the
// length of its header (8 bytes), the header (JSON), and the tensors' bytes, one after another.
//
//     AtomicFile file("model.safetensors");
//     file.write(safetensors_header(tensors, metadata));
//     for (...) file.write(bytes);               // of each tensor, in the same order
//     file.commit();
//
//     const SafetensorsFile file("model.safetensors");
//     const std::span<const std::byte> bytes = file.bytes("lm_head.weight");
//
// A file is mapped, so a tensor is read from disk when its bytes are touched. Errors in what a file
// says are Error(kCheckpoint) and name the file. Thread rule: any thread may read a file.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/file.h"
#include "distca/base/integers.h"
#include "distca/base/scalar_type.h"

namespace distca {

inline constexpr int64_t kMostTensorElements = int64_t{1} << 48;  // the most that a tensor has

/// A tensor as a file describes it.
struct StoredTensor {
  std::string name;
  ScalarType type = ScalarType::kFloat32;
  std::vector<int64_t> shape;
  /// True if the tensor is in half precision, in which nothing is computed here. Then `type` is
  /// kBFloat16, which is as long.
  bool is_float16 = false;

  int64_t numel() const;
  /// Such as "bfloat16".
  std::string type_name() const;
  int64_t bytes() const { return numel() * element_bytes(type); }
  bool operator==(const StoredTensor&) const = default;
};

/// Free text in the header of a file, by key. "format" is always there too, and is "pt".
using SafetensorsMetadata = std::map<std::string, std::string>;

/// The bytes that stand before the first tensor.
std::string safetensors_header(const std::vector<StoredTensor>& tensors,
                               const SafetensorsMetadata& metadata);

/// The size in bytes of a file with these tensors.
int64_t safetensors_bytes(const std::vector<StoredTensor>& tensors,
                          const SafetensorsMetadata& metadata);

/// The contents of a header.
struct SafetensorsHeader {
  struct Entry {
    StoredTensor tensor;
    Range place;  // bytes of the file
  };
  std::vector<Entry> tensors;  // in the order of their bytes
  SafetensorsMetadata metadata;
};

/// Reads the header of a file that has `file_bytes` bytes and begins with `begin`, which must
/// contain the whole header. Checks that the tensors lie in the file one after another without gaps
/// and that their sizes fit their shapes. `name` is the file's, for errors.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> begin, int64_t file_bytes,
                                           std::string_view name);

/// A file whose tensors are read.
class SafetensorsFile {
 public:
  /// Throws Error(kCheckpoint) if the file cannot be read or is not in this format.
  explicit SafetensorsFile(const std::filesystem::path& path);

  int64_t size() const { return file_.size(); }  // bytes
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  const std::vector<SafetensorsHeader::Entry>& tensors() const { return header_.tensors; }
  /// The entry of a tensor. Throws Error(kCheckpoint) if the file has none of this name.
  const SafetensorsHeader::Entry& at(const std::string& name) const;
  std::span<const std::byte> bytes(const SafetensorsHeader::Entry& entry) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t> index_;  // indices in header_.tensors, by name
};

/// The metadata of a file, with "format". Empty if the file cannot be read or is not safetensors.
SafetensorsMetadata read_safetensors_metadata(const std::filesystem::path& path);

}  // namespace distca
