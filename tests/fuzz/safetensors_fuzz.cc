#include "distca/checkpoint/safetensors.h"

#include <string>
#include <vector>

#include "tests/fuzz/fuzzing.h"
#include "tests/fuzz/targets.h"

namespace distca::fuzz {
namespace {

/// Every byte behind the header belongs to one tensor.
void check_places(const SafetensorsHeader& header, int64_t file_bytes) {
  int64_t held = 0;
  for (const auto& [tensor, place] : header.tensors) {
    DISTCA_CHECK(0 <= place.begin && place.end <= file_bytes, "{} lies outside", tensor.name);
    DISTCA_CHECK_EQ(place.size(), tensor.bytes());
    held += place.size();
  }
  DISTCA_CHECK(header.tensors.empty() || held == file_bytes - header.tensors[0].place.begin,
               "tensors hold {} of {} bytes", held, file_bytes);
}

std::vector<StoredTensor> tensors_of(const SafetensorsHeader& header) {
  std::vector<StoredTensor> tensors;
  for (const auto& entry : header.tensors) tensors.push_back(entry.tensor);
  return tensors;
}

}  // namespace

bool safetensors(std::span<const uint8_t> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const auto read = unless_refused(
      [&] { return parse_safetensors_header(std::as_bytes(bytes), size, "x.safetensors"); });
  if (!read) return false;
  check_places(*read, size);
  const std::vector<StoredTensor> tensors = tensors_of(*read);
  const std::string written = safetensors_header(tensors, read->metadata);
  const SafetensorsHeader again =
      parse_safetensors_header(std::as_bytes(std::span(written)),
                               safetensors_bytes(tensors, read->metadata), "written.safetensors");
  SafetensorsMetadata metadata = read->metadata;
  metadata["format"] = "pt";  // every written header says so
  DISTCA_CHECK(tensors_of(again) == tensors && again.metadata == metadata,
               "a header that was read, written and read again is another one");
  return true;
}

}  // namespace distca::fuzz
