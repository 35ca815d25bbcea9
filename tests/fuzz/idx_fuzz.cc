#include <algorithm>
#include <filesystem>
#include <vector>

#include "distca/base/error.h"
#include "distca/batch/indexed_dataset.h"
#include "tests/fuzz/fuzzing.h"
#include "tests/fuzz/targets.h"

namespace distca::fuzz {
namespace {

struct Contents {
  TokenType type{};
  std::vector<std::vector<int32_t>> documents;
  uint64_t fingerprint = 0;
  bool operator==(const Contents&) const = default;
};

Contents read_all(const IndexedDataset& data) {
  Contents contents{data.token_type(), {}, data.fingerprint()};
  int64_t tokens = 0;
  for (int64_t document = 0; document < data.num_documents(); ++document) {
    auto& ids = contents.documents.emplace_back(data.document_length(document));
    DISTCA_THROW_IF(data.read(document, 0, ids), ErrorKind::kData, "an id of no vocabulary");
    tokens += data.document_length(document);
  }
  DISTCA_CHECK_EQ(tokens, data.num_tokens());
  return contents;
}

/// A token beyond a vocabulary is found where there is one, and nowhere else.
void check_vocabularies(const IndexedDataset& data, const Contents& contents) {
  for (const int64_t size : {1, 256, 40'000}) {
    const bool known = std::ranges::all_of(contents.documents, [&](const auto& ids) {
      return std::ranges::all_of(ids, [&](int32_t id) { return id < size; });
    });
    DISTCA_CHECK(data.find_beyond(size).has_value() != known,
                 "a vocabulary of {} is judged wrongly", size);
  }
}

void write_all(const std::filesystem::path& prefix, const Contents& contents) {
  IndexedDatasetWriter writer(prefix, contents.type);
  for (const auto& ids : contents.documents) writer.add_document(ids);
  writer.finish();
}

}  // namespace

bool idx(std::span<const uint8_t> bytes) {
  if (bytes.size() < 2) return false;
  const size_t wanted = bytes[0] + 256 * bytes[1];
  const std::span<const uint8_t> rest = bytes.subspan(2);
  const size_t tokens = std::min(wanted, rest.size());
  folder().write("read.bin", as_text(rest.first(tokens)));
  folder().write("read.idx", as_text(rest.subspan(tokens)));
  const auto contents = unless_refused([] {
    const IndexedDataset data(folder() / "read");
    Contents contents = read_all(data);
    check_vocabularies(data, contents);
    return contents;
  });
  if (!contents) return false;
  write_all(folder() / "written", *contents);
  DISTCA_CHECK(read_all(IndexedDataset(folder() / "written")) == *contents,
               "a data set that was read, written and read again is another one");
  return true;
}

}  // namespace distca::fuzz
