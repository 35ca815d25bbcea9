#pragma once
// Reads and writes data sets in Megatron's indexed format. PREFIX.bin holds the tokens, and
// PREFIX.idx says where documents begin (docs/data_format.md describes the bytes). A document of
// several sequences is their concatenation.
//
//   const IndexedDataset data("data/stdlib");
//   std::vector<int32_t> tokens(data.document_length(0));
//   if (const auto bad = data.read(/*document=*/0, /*offset=*/0, tokens)) refuse(*bad);
//
// Errors: Error(kData), in one line, for a file that is missing, cut or not in this format. The
// index is checked in one pass when a data set is opened.
// Thread rule: any thread may read a data set. A writer belongs to one thread.

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "distca/base/file.h"

namespace distca {

/// The type in which tokens are stored. The values are the codes in the file.
enum class TokenType : uint8_t { kUint8 = 1, kInt32 = 4, kInt64 = 5, kUint16 = 8 };

int64_t token_bytes(TokenType type);
/// The name that numpy gives the type, such as "uint8".
std::string token_type_name(TokenType type);

/// A token whose id a vocabulary does not have.
struct BadToken {
  int64_t document = 0, position = 0;  // index in the data set, and place within the document
  int64_t id = 0;
  int64_t largest_id = 0;  // the largest of all tokens that were looked at
};

class IndexedDataset {
 public:
  /// Opens both files and checks the index against their sizes. A final ".bin" or ".idx" of
  /// `prefix` is ignored. A .bin that is cut or that cannot be read later is Error(kData) of what
  /// reads it.
  explicit IndexedDataset(const std::filesystem::path& prefix);

  TokenType token_type() const { return type_; }
  int64_t num_documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_tokens() const { return num_tokens_; }
  /// PREFIX.bin.
  const std::filesystem::path& path() const { return bin_path_; }
  int64_t document_length(int64_t document) const { return lengths_[document]; }  // tokens
  const std::vector<int64_t>& document_lengths() const { return lengths_; }

  static constexpr int32_t kBadId = -1;
  static constexpr int64_t kAnyVocabulary = int64_t{1} << 31;  // ids are read into 32 bits
  /// Reads out.size() tokens of a document, beginning with token `offset`. These tokens must exist
  /// (CHECK). An id that is negative or >= vocab_size becomes kBadId. Returns the first such token.
  [[nodiscard]] std::optional<BadToken> read(int64_t document, int64_t offset,
                                             std::span<int32_t> out,
                                             int64_t vocab_size = kAnyVocabulary) const;

  /// The largest id of all tokens, which it reads; 0 of none.
  int64_t largest_id() const;

  /// The first id seen that a vocabulary of `vocab_size` does not have. Looks at all tokens of a
  /// data set of up to kSearched bytes, of a larger one at kSamples pieces, the same ones each
  /// time, and at none where the type alone rules such ids out.
  std::optional<BadToken> find_beyond(int64_t vocab_size) const;
  static constexpr int64_t kSearched = int64_t{1} << 28;  // bytes of tokens

  /// A hash that tells data sets apart. It covers the type, the lengths and order of all documents,
  /// and tokens: all of them in a data set of up to kWhole bytes, otherwise kSamples pieces of
  /// kSampleBytes, at the same places each time.
  uint64_t fingerprint() const;
  static constexpr int64_t kWhole = int64_t{1} << 24;  // bytes of tokens
  static constexpr int64_t kSamples = 64;
  static constexpr int64_t kSampleBytes = int64_t{1} << 16;

 private:
  struct Piece {
    int64_t document, offset, count;  // tokens
  };
  /// All tokens of a set of up to `whole` bytes, else a sample.
  std::vector<Piece> sample(int64_t whole) const;
  /// They are valid until the window's next use.
  const std::byte* bytes_of(int64_t document, int64_t offset, int64_t count,
                            FileWindow& window) const;

  std::filesystem::path idx_path_;
  std::filesystem::path bin_path_;
  PiecewiseFile bin_;
  TokenType type_ = TokenType::kUint8;
  int64_t num_sequences_ = 0;
  int64_t num_tokens_ = 0;
  std::vector<int64_t> lengths_;  // [documents] tokens
  std::vector<int64_t> starts_;   // [documents] byte offset in the .bin
};

/// The paths PREFIX.bin and PREFIX.idx. `prefix` may also be one of these two names.
std::array<std::filesystem::path, 2> data_set_files(const std::filesystem::path& prefix);

/// Writes a data set. A document becomes one sequence, or several if it has more tokens than the
/// format allows a sequence. A writer that is destroyed before finish() leaves no file behind.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type,
                       int64_t most_of_a_sequence = std::numeric_limits<int32_t>::max());

  /// Throws Error(kData) for an id that the type cannot hold.
  void add_document(std::span<const int32_t> tokens);
  /// Does the same in pieces: append() adds tokens to a document, and end_document() ends it.
  void append(std::span<const int32_t> tokens);
  void end_document();
  /// The largest id of all tokens so far; 0 of none.
  int64_t largest_id() const { return largest_id_; }
  /// Puts both files in place, the index last. So a data set is whole or has no index.
  void finish();

 private:
  std::filesystem::path idx_path_;
  AtomicFile bin_;
  TokenType type_;
  int64_t most_of_a_sequence_;            // tokens
  std::vector<int32_t> lengths_;          // [sequences] tokens
  std::vector<int64_t> documents_ = {0};  // first sequence of each, and of the next
  int64_t document_tokens_ = 0;           // tokens of the document being written
  int64_t largest_id_ = 0;
};

}  // namespace distca
