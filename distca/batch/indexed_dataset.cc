#include "distca/batch/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>
#include <type_traits>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/integers.h"
#include "distca/base/random.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::array<char, 9> kMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X'};
constexpr uint64_t kVersion = 1;
/// The beginning of an index. All its values follow each other without alignment.
struct [[gnu::packed]] Header {
  std::array<char, 9> magic = kMagic;
  uint64_t version = kVersion;
  uint8_t type = 0;
  uint64_t sequences = 0, boundaries = 0;
};
/// 12 bytes a sequence and 8 a boundary.
constexpr uint64_t index_bytes(uint64_t sequences, uint64_t boundaries) {
  return sizeof(Header) + 12 * sequences + 8 * boundaries;
}

fs::path file_of(fs::path prefix, const char* extension) {
  const fs::path given = prefix.extension();
  if (given == ".bin" || given == ".idx") prefix.replace_extension();
  prefix += extension;
  return prefix;
}

constexpr int64_t kReadAtOnce = int64_t{1} << 20;  // bytes; of a long document, tokens

template <typename File>
File open_part(const fs::path& path) {
  std::error_code ignored;  // a path that cannot be looked at cannot be opened either, and that
                            // error is the better one
  if (fs::exists(path, ignored) || ignored) return File(path, ErrorKind::kData);
  throw Error(ErrorKind::kData,
              "{}: no such file; a data set is PREFIX.bin and PREFIX.idx as written by distca data "
              "prepare or Megatron",
              path.string());
}

/// Calls f with a null pointer to the type in which tokens are stored.
template <typename F>
decltype(auto) with_token_type(TokenType type, F&& f) {
  switch (type) {
    case TokenType::kUint8:
      return f(static_cast<const uint8_t*>(nullptr));
    case TokenType::kUint16:
      return f(static_cast<const uint16_t*>(nullptr));
    case TokenType::kInt32:
      return f(static_cast<const int32_t*>(nullptr));
    case TokenType::kInt64:
      return f(static_cast<const int64_t*>(nullptr));
  }
  throw CheckFailure("token type out of range");
}

TokenType token_type_of_code(uint8_t code, const fs::path& path) {
  for (TokenType type :
       {TokenType::kUint8, TokenType::kUint16, TokenType::kInt32, TokenType::kInt64}) {
    if (code == static_cast<uint8_t>(type)) return type;
  }
  throw Error(ErrorKind::kData,
              "{}: token type code {}: expected 1 (uint8), 4 (int32), 5 (int64) or 8 (uint16)",
              path.string(), code);
}

struct Index {
  TokenType type;
  std::vector<int32_t> sequence_lengths;   // tokens
  std::vector<int64_t> sequence_pointers;  // byte offsets in the .bin
  std::vector<int64_t> documents;          // first sequence of each, and the end
};

Index parse_index(const MappedFile& file, const fs::path& path) {
  const std::string name = path.string();
  std::span<const std::byte> rest = file.bytes();
  const size_t size = rest.size();
  DISTCA_THROW_IF(size < sizeof(Header), ErrorKind::kData,
                  "{}: cut: {} bytes, the header alone has {}", name, size, sizeof(Header));
  const auto take = [&](void* to, size_t bytes) {
    std::ranges::copy(rest.first(bytes), static_cast<std::byte*>(to));
    rest = rest.subspan(bytes);
  };
  Header header;
  take(&header, sizeof header);
  DISTCA_THROW_IF(header.magic != kMagic, ErrorKind::kData,
                  "{}: not an index: it does not begin with MMIDIDX", name);
  const uint64_t version = header.version, sequences = header.sequences,
                 boundaries = header.boundaries;
  DISTCA_THROW_IF(version != kVersion, ErrorKind::kData, "{}: index version {}: expected {}", name,
                  version, kVersion);
  Index index;
  index.type = token_type_of_code(header.type, path);
  // Counts beyond the file's size would overflow that sum.
  const bool plausible = sequences <= size && boundaries <= size;
  const uint64_t expected = index_bytes(sequences, boundaries);
  DISTCA_THROW_IF(!plausible || expected > size, ErrorKind::kData,
                  "{}: cut: {} bytes are too few for {} sequences and {} document boundaries", name,
                  size, sequences, boundaries);
  DISTCA_THROW_IF(
      expected < size, ErrorKind::kData,
      "{}: {} bytes, expected {} for {} sequences and {} document boundaries (sequence modes of "
      "multimodal data sets are not supported)",
      name, size, expected, sequences, boundaries);
  const auto take_all = [&](auto& values, size_t count) {
    values.resize(count);
    take(values.data(), count * sizeof(values[0]));
  };
  take_all(index.sequence_lengths, sequences);
  take_all(index.sequence_pointers, sequences);
  take_all(index.documents, boundaries);
  return index;
}

void check_boundaries(const Index& index, const fs::path& path) {
  const auto sequences = static_cast<int64_t>(index.sequence_lengths.size());
  const auto& documents = index.documents;
  DISTCA_THROW_IF(documents.empty() || documents.front() != 0 || documents.back() != sequences ||
                      !std::ranges::is_sorted(documents),
                  ErrorKind::kData,
                  "{}: document boundaries must rise from 0 to the number of sequences, {}",
                  path.string(), sequences);
}

/// Every sequence lies within the .bin, and the last of them ends where it ends.
void check_sequences(const Index& index, const fs::path& idx_path, const fs::path& bin_path,
                     int64_t bin_size) {
  const int64_t item = token_bytes(index.type);
  int64_t end = 0;
  for (size_t s = 0; s < index.sequence_lengths.size(); ++s) {
    const int64_t length = index.sequence_lengths[s];
    const int64_t pointer = index.sequence_pointers[s];
    DISTCA_THROW_IF(length < 0 || pointer < 0 || pointer % item != 0 ||
                        pointer > std::numeric_limits<int64_t>::max() - length * item,
                    ErrorKind::kData,
                    "{}: sequence {} has length {} and byte offset {}: the file is damaged",
                    idx_path.string(), s, length, pointer);
    end = std::max(end, pointer + length * item);
  }
  DISTCA_THROW_IF(end != bin_size, ErrorKind::kData,
                  "{}: {}: {} bytes, its index says {}; prepare the data set again",
                  bin_path.string(), bin_size < end ? "cut" : "not the file of its index", bin_size,
                  end);
}

/// Where a document's tokens lie in the .bin.
Range document_bytes(const Index& index, size_t document, const fs::path& idx_path) {
  Range bytes;
  for (int64_t s = index.documents[document]; s < index.documents[document + 1]; ++s) {
    const int64_t pointer = index.sequence_pointers[s];
    if (bytes.empty()) bytes = {pointer, pointer};
    DISTCA_THROW_IF(
        pointer != bytes.end, ErrorKind::kData,
        "{}: document {} is scattered: sequence {} begins at byte {}, expected {}; write the data "
        "set anew with the sequences of a document one after another",
        idx_path.string(), document, s, pointer, bytes.end);
    bytes.end += index.sequence_lengths[s] * token_bytes(index.type);
  }
  return bytes;
}

template <typename T>
T load_token(const std::byte* bytes, int64_t index) {
  T id;
  std::memcpy(&id, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return id;
}

template <typename T>
bool is_beyond(T id, int64_t vocab_size) {
  return id < 0 || static_cast<int64_t>(id) >= vocab_size;
}

/// May a token lie beyond the vocabulary? Not where the type alone says no.
template <typename T>
bool needs_check(int64_t vocab_size) {
  return std::is_signed_v<T> || vocab_size <= int64_t{std::numeric_limits<T>::max()};
}

/// The largest id, 0 of none.
template <typename T>
int64_t largest(const std::byte* bytes, int64_t count) {
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i)
    most = std::max(most, static_cast<int64_t>(load_token<T>(bytes, i)));
  return most;
}

}  // namespace

int64_t token_bytes(TokenType type) {
  return with_token_type(type, [](auto* token) { return static_cast<int64_t>(sizeof(*token)); });
}

std::string token_type_name(TokenType type) {
  return with_token_type(type, []<typename T>(const T*) {
    return fmt::format("{}int{}", std::is_signed_v<T> ? "" : "u", 8 * sizeof(T));
  });
}

IndexedDataset::IndexedDataset(const fs::path& prefix)
    : idx_path_(file_of(prefix, ".idx")),
      bin_path_(file_of(prefix, ".bin")),
      bin_(open_part<PiecewiseFile>(bin_path_)) {
  const Index index = parse_index(open_part<MappedFile>(idx_path_), idx_path_);
  check_boundaries(index, idx_path_);
  check_sequences(index, idx_path_, bin_path_, bin_.size());
  type_ = index.type;
  num_sequences_ = static_cast<int64_t>(index.sequence_lengths.size());
  for (size_t document = 0; document + 1 < index.documents.size(); ++document) {
    const Range bytes = document_bytes(index, document, idx_path_);
    starts_.push_back(bytes.begin);
    lengths_.push_back(bytes.size() / token_bytes(type_));
    num_tokens_ += lengths_.back();
  }
}

std::optional<BadToken> IndexedDataset::read(int64_t document, int64_t offset,
                                             std::span<int32_t> out, int64_t vocab_size) const {
  const auto count = static_cast<int64_t>(out.size());
  FileWindow window(bin_);
  const std::byte* const bytes = bytes_of(document, offset, count, window);
  std::optional<BadToken> first;
  with_token_type(type_, [&]<typename T>(const T*) {
    const bool checks = needs_check<T>(vocab_size);
    for (int64_t i = 0; i < count; ++i) {
      const T id = load_token<T>(bytes, i);
      const bool bad = checks && is_beyond(id, vocab_size);
      out[i] = bad ? kBadId : static_cast<int32_t>(id);
      if (bad && !first) {
        first = {.document = document,
                 .position = offset + i,
                 .id = static_cast<int64_t>(id),
                 .largest_id = largest<T>(bytes, count)};
      }
    }
  });
  return first;
}

const std::byte* IndexedDataset::bytes_of(int64_t document, int64_t offset, int64_t count,
                                          FileWindow& window) const {
  DISTCA_CHECK(0 <= document && document < num_documents(), "document {} of {}", document,
               num_documents());
  DISTCA_CHECK(0 <= offset && offset + count <= document_length(document),
               "tokens [{}, {}) of document {} of length {}", offset, offset + count, document,
               document_length(document));
  return window.at(starts_[document] + offset * token_bytes(type_), count * token_bytes(type_));
}

std::vector<IndexedDataset::Piece> IndexedDataset::sample(int64_t whole) const {
  std::vector<Piece> pieces;
  if (num_tokens_ * token_bytes(type_) <= whole) {
    for (int64_t document = 0; document < num_documents(); ++document)
      pieces.push_back({document, 0, document_length(document)});
    return pieces;
  }
  Random random(0x5a3b1e5);  // any: it must never change
  for (int64_t i = 0; i < kSamples; ++i) {
    const auto document =
        static_cast<int64_t>(random.below(static_cast<uint64_t>(num_documents())));
    const int64_t length = document_length(document);
    const int64_t count = std::min(length, kSampleBytes / token_bytes(type_));
    const auto offset =
        static_cast<int64_t>(random.below(static_cast<uint64_t>(length - count + 1)));
    pieces.push_back({document, offset, count});
  }
  return pieces;
}

int64_t IndexedDataset::largest_id() const {
  return with_token_type(type_, [&]<typename T>(const T*) {
    FileWindow window(bin_, kReadAtOnce);
    int64_t most = 0;
    for (int64_t document = 0; document < num_documents(); ++document) {
      for (int64_t begin = 0; begin < document_length(document); begin += kReadAtOnce) {
        const int64_t count = std::min(kReadAtOnce, document_length(document) - begin);
        most = std::max(most, largest<T>(bytes_of(document, begin, count, window), count));
      }
    }
    return most;
  });
}

std::optional<BadToken> IndexedDataset::find_beyond(int64_t vocab_size) const {
  std::optional<BadToken> first;
  with_token_type(type_, [&]<typename T>(const T*) {
    if (!needs_check<T>(vocab_size)) return;
    int64_t largest_id = 0;
    FileWindow window(bin_, kReadAtOnce);
    for (const Piece& piece : sample(kSearched)) {
      const std::byte* bytes = bytes_of(piece.document, piece.offset, piece.count, window);
      largest_id = std::max(largest_id, largest<T>(bytes, piece.count));
      for (int64_t i = 0; i < piece.count && !first; ++i) {
        const T id = load_token<T>(bytes, i);
        if (!is_beyond(id, vocab_size)) continue;
        first = {.document = piece.document,
                 .position = piece.offset + i,
                 .id = static_cast<int64_t>(id)};
      }
    }
    if (first) first->largest_id = largest_id;
  });
  return first;
}

std::array<fs::path, 2> data_set_files(const fs::path& prefix) {
  return {file_of(prefix, ".bin"), file_of(prefix, ".idx")};
}

uint64_t IndexedDataset::fingerprint() const {
  std::vector<uint64_t> parts = {static_cast<uint64_t>(type_), static_cast<uint64_t>(num_tokens_),
                                 hash_words(std::as_bytes(std::span(lengths_)))};
  FileWindow window(bin_, kReadAtOnce);
  for (const Piece& piece : sample(kWhole)) {
    const auto bytes = static_cast<size_t>(piece.count * token_bytes(type_));
    parts.push_back(
        hash_words({bytes_of(piece.document, piece.offset, piece.count, window), bytes}));
  }
  return hash_words(std::as_bytes(std::span(parts)));
}

IndexedDatasetWriter::IndexedDatasetWriter(const fs::path& prefix, TokenType type,
                                           int64_t most_of_a_sequence)
    : idx_path_(file_of(prefix, ".idx")),
      bin_(file_of(prefix, ".bin")),
      type_(type),
      most_of_a_sequence_(most_of_a_sequence) {
  DISTCA_CHECK(0 < most_of_a_sequence && most_of_a_sequence <= std::numeric_limits<int32_t>::max(),
               "{} tokens a sequence", most_of_a_sequence);
}

void IndexedDatasetWriter::add_document(std::span<const int32_t> tokens) {
  append(tokens);
  end_document();
}

void IndexedDatasetWriter::append(std::span<const int32_t> tokens) {
  with_token_type(type_, [&]<typename T>(const T*) {
    std::vector<T> stored(tokens.begin(), tokens.end());
    for (size_t i = 0; i < tokens.size(); ++i) {
      DISTCA_THROW_IF(tokens[i] < 0 || static_cast<int64_t>(stored[i]) != tokens[i],
                      ErrorKind::kData, "document {} has token id {} at position {}: not a {}",
                      documents_.size() - 1, tokens[i], document_tokens_ + static_cast<int64_t>(i),
                      token_type_name(type_));
      largest_id_ = std::max<int64_t>(largest_id_, tokens[i]);
    }
    bin_.write(std::as_bytes(std::span<const T>(stored)));
  });
  document_tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetWriter::end_document() {
  // An empty document has a sequence too, as Megatron writes it.
  do {
    const int64_t length = std::min(document_tokens_, most_of_a_sequence_);
    lengths_.push_back(static_cast<int32_t>(length));
    document_tokens_ -= length;
  } while (document_tokens_ > 0);
  documents_.push_back(static_cast<int64_t>(lengths_.size()));
}

void IndexedDatasetWriter::finish() {
  std::vector<int64_t> pointers;
  int64_t end = 0;
  for (const int32_t length : lengths_) {
    pointers.push_back(end);
    end += length * token_bytes(type_);
  }
  const Header header{.type = static_cast<uint8_t>(type_),
                      .sequences = lengths_.size(),
                      .boundaries = documents_.size()};
  AtomicFile idx(idx_path_);
  idx.write(std::as_bytes(std::span(&header, 1)));
  idx.write(std::as_bytes(std::span(lengths_)));
  idx.write(std::as_bytes(std::span(pointers)));
  idx.write(std::as_bytes(std::span(documents_)));
  // A disk that is full must cost the new data set, not the older one.
  bin_.reserve(end);
  idx.reserve(static_cast<int64_t>(index_bytes(lengths_.size(), documents_.size())));
  // An older index must not be found next to the new tokens.
  std::error_code ignored;  // commit() reports what stands in the way
  if (!idx.target().empty()) fs::remove(idx.target(), ignored);
  bin_.commit();
  idx.commit();
}

}  // namespace distca
