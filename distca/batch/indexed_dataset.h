#pragma once
// Megatron's indexed data set: PREFIX.bin holds the tokens, PREFIX.idx says where documents begin
// (docs/data_format.md has the bytes). A document of several sequences is their concatenation.
//
// Errors: Error(kData), one line, for a file that is missing, cut, or not what it should be; found
// when opening, in one pass over the index. Thread rule: reading is safe from any thread; a writer
// belongs to one.

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <vector>

#include "distca/base/file.h"

namespace distca {

/// How a token is stored; the values are the codes in the file.
enum class TokenType : uint8_t { kUint8 = 1, kInt32 = 4, kInt64 = 5, kUint16 = 8 };

int64_t token_bytes(TokenType type);
/// "uint8", as numpy says it.
const char* token_type_name(TokenType type);

class IndexedDataset {
 public:
  /// Maps both files and checks the index against them. A final ".bin" or ".idx" of `prefix` is
  /// ignored.
  explicit IndexedDataset(const std::filesystem::path& prefix);

  TokenType token_type() const { return type_; }
  int64_t num_documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t document_length(int64_t document) const { return lengths_[document]; }  // tokens
  const std::vector<int64_t>& document_lengths() const { return lengths_; }

  /// out.size() tokens of a document from `offset` on; they must exist. Throws Error(kData) naming
  /// document, position and id for one that is negative or >= vocab_size.
  void read(int64_t document, int64_t offset, std::span<int32_t> out,
            int64_t vocab_size = kAnyVocabulary) const;
  static constexpr int64_t kAnyVocabulary = int64_t{1} << 31;  // ids are read into 32 bits

  /// Throws Error(kData) as read() does, with the largest id of what was looked at: all tokens of a
  /// set of up to kWhole bytes, else some of some documents, the same ones each time. Looks at none
  /// where the type alone answers.
  void check_vocabulary(int64_t vocab_size) const;
  static constexpr int64_t kWhole = int64_t{1} << 24;

  /// Tells data sets apart: lengths, order and type of all documents, and the tokens: all of a set
  /// of up to kWhole bytes, else kSamples pieces of kSampleBytes, the same places each time.
  uint64_t fingerprint() const;
  static constexpr int64_t kSamples = 64;
  static constexpr int64_t kSampleBytes = int64_t{1} << 16;

 private:
  struct Piece {
    int64_t document, offset, count;  // tokens
  };
  /// What check_vocabulary and fingerprint look at.
  std::vector<Piece> sample() const;
  const std::byte* bytes_of(int64_t document, int64_t offset, int64_t count) const;
  [[noreturn]] void refuse(int64_t document, int64_t position, int64_t id, int64_t largest_id,
                           int64_t vocab_size) const;

  std::filesystem::path idx_path_;
  std::filesystem::path bin_path_;
  MappedFile bin_;
  TokenType type_ = TokenType::kUint8;
  int64_t num_sequences_ = 0;
  int64_t num_tokens_ = 0;
  std::vector<int64_t> lengths_;  // [documents] tokens
  std::vector<int64_t> starts_;   // [documents] byte offset in the .bin
};

/// PREFIX.bin and PREFIX.idx; `prefix` may also be one of the two names.
std::array<std::filesystem::path, 2> data_set_files(const std::filesystem::path& prefix);

/// Writes a data set: a document is one sequence, or several where it has more tokens than the
/// format gives one. Destroyed before finish(), it leaves no file behind.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type,
                       int64_t most_of_a_sequence = std::numeric_limits<int32_t>::max());

  /// Throws Error(kData) for an id the type cannot hold.
  void add_document(std::span<const int32_t> tokens);
  /// The same in pieces: tokens of the document that end_document() ends.
  void append(std::span<const int32_t> tokens);
  void end_document();
  /// Puts both files in place, the index last: a data set is whole or has no index.
  void finish();

 private:
  std::filesystem::path idx_path_;
  AtomicFile bin_;
  TokenType type_;
  int64_t most_of_a_sequence_;            // tokens
  std::vector<int32_t> lengths_;          // [sequences] tokens
  std::vector<int64_t> documents_ = {0};  // first sequence of each, and of the next
  int64_t document_tokens_ = 0;           // of the document under way
};

}  // namespace distca
