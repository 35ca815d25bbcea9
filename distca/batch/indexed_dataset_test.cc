#include "distca/batch/indexed_dataset.h"

#include <fstream>
#include <limits>
#include <numeric>
#include <string>

#include "distca/base/error.h"
#include "distca/batch/test_folder.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

template <typename T>
void append(std::string& bytes, std::initializer_list<T> values) {
  for (const T& value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// An index by hand, after the format's description; the writer is not trusted here.
struct RawIndex {
  std::string magic{"MMIDIDX\0\0", 9};
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths{2, 1, 3};
  std::vector<int64_t> pointers{0, 4, 6};
  std::vector<int64_t> documents{0, 2, 2, 3};

  std::string bytes() const {
    std::string out = magic;
    append(out, {version});
    append(out, {type});
    append(out, {static_cast<uint64_t>(lengths.size()), static_cast<uint64_t>(documents.size())});
    for (int32_t value : lengths) append(out, {value});
    for (int64_t value : pointers) append(out, {value});
    for (int64_t value : documents) append(out, {value});
    return out;
  }
};

class IndexedDatasetTest : public FolderTest {
 protected:
  fs::path prefix() const { return folder_ / "set"; }
  void write_raw(const RawIndex& index) {
    std::string tokens;
    append<uint16_t>(tokens, {10, 11, 12, 20, 21, 60000});
    write_file_atomically(folder_ / "set.bin", tokens);
    write_file_atomically(folder_ / "set.idx", index.bytes());
  }
  std::vector<int32_t> tokens(const IndexedDataset& dataset, int64_t document) {
    std::vector<int32_t> out(static_cast<size_t>(dataset.document_length(document)));
    EXPECT_FALSE(dataset.read(document, 0, out));
    return out;
  }
  /// Opening must fail with bad data, one line, and these words.
  void expect_refused(const std::string& words) {
    try {
      const IndexedDataset dataset(prefix());
      ADD_FAILURE() << "opened, expected: " << words;
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_NE(what.find(words), std::string::npos) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    }
  }
};

TEST_F(IndexedDatasetTest, a_file_of_several_sequences_a_document_is_read) {
  write_raw({});
  const IndexedDataset dataset(prefix());
  EXPECT_EQ(dataset.token_type(), TokenType::kUint16);
  EXPECT_EQ(dataset.num_sequences(), 3);
  EXPECT_EQ(dataset.num_tokens(), 6);
  EXPECT_EQ(dataset.document_lengths(), (std::vector<int64_t>{3, 0, 3}));
  EXPECT_EQ(tokens(dataset, 0), (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(tokens(dataset, 2), (std::vector<int32_t>{20, 21, 60000}));
  std::vector<int32_t> middle(1);
  EXPECT_FALSE(dataset.read(2, 1, middle));
  EXPECT_EQ(middle[0], 21);
}

TEST_F(IndexedDatasetTest, the_writer_makes_exactly_the_bytes_of_the_format) {
  IndexedDatasetWriter writer(prefix(), TokenType::kUint16);
  writer.add_document(std::vector<int32_t>{10, 11, 12});
  writer.add_document({});
  writer.add_document(std::vector<int32_t>{20, 21, 60000});
  writer.finish();
  RawIndex expected;
  expected.lengths = {3, 0, 3};
  expected.pointers = {0, 6, 6};
  expected.documents = {0, 1, 2, 3};
  EXPECT_EQ(read_file(folder_ / "set.idx"), expected.bytes());
  EXPECT_EQ(read_file(folder_ / "set.bin"),
            std::string("\x0a\0\x0b\0\x0c\0\x14\0\x15\0\x60\xea", 12));
}

TEST_F(IndexedDatasetTest, every_token_type_comes_back) {
  for (TokenType type :
       {TokenType::kUint8, TokenType::kUint16, TokenType::kInt32, TokenType::kInt64}) {
    const std::vector<int32_t> written{0, 7, 255};
    IndexedDatasetWriter writer(prefix(), type);
    writer.add_document(written);
    writer.finish();
    const IndexedDataset dataset(prefix());
    EXPECT_EQ(dataset.token_type(), type);
    EXPECT_EQ(tokens(dataset, 0), written) << token_type_name(type);
  }
}

TEST_F(IndexedDatasetTest, missing_files_are_refused) {
  expect_refused("set.bin: no such file; a data set is PREFIX.bin and PREFIX.idx");
  write_raw({});
  fs::remove(folder_ / "set.idx");
  expect_refused("set.idx: no such file");
}

TEST_F(IndexedDatasetTest, cut_files_are_refused_wherever_they_are_cut) {
  const std::string whole = RawIndex{}.bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    write_raw({});
    write_file_atomically(folder_ / "set.idx", std::string_view(whole).substr(0, size));
    expect_refused("set.idx: cut");
  }
  write_raw({});
  fs::resize_file(folder_ / "set.bin", 11);
  expect_refused("set.bin: cut: 11 bytes, its index says 12");
  fs::resize_file(folder_ / "set.bin", 14);
  expect_refused("set.bin: not the file of its index: 14 bytes, its index says 12");
}

TEST_F(IndexedDatasetTest, a_file_that_is_cut_while_it_is_in_use_is_an_error_of_who_reads_it) {
  write_raw({});
  const IndexedDataset dataset(prefix());
  EXPECT_THAT(tokens(dataset, 2), ::testing::ElementsAre(20, 21, 60000));
  fs::resize_file(folder_ / "set.bin", 8);
  EXPECT_THAT(tokens(dataset, 0), ::testing::ElementsAre(10, 11, 12));
  try {
    tokens(dataset, 2);
    FAIL() << "read what is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_THAT(error.what(),
                ::testing::EndsWith("set.bin: cut while it is in use: it had 12 bytes and ends "
                                    "before byte 12 now"));
  }
}

TEST_F(IndexedDatasetTest, wrong_files_are_refused) {
  RawIndex wrong;
  wrong.magic = "MMIDIDXXX";
  write_raw(wrong);
  expect_refused("not an index");
  wrong = {.version = 2};
  write_raw(wrong);
  expect_refused("index version 2: expected 1");
  wrong = {.type = 7};
  write_raw(wrong);
  expect_refused("token type code 7: expected 1 (uint8)");
  write_file_atomically(folder_ / "set.idx", RawIndex{}.bytes() + "abc");
  expect_refused("expected 102 for 3 sequences and 4 document boundaries");
}

TEST_F(IndexedDatasetTest, counts_beyond_any_file_are_refused) {
  std::string bytes = RawIndex{}.bytes();
  write_raw({});
  bytes.replace(18, 8, std::string(8, '\xff'));
  write_file_atomically(folder_ / "set.idx", bytes);
  expect_refused("set.idx: cut");
}

TEST_F(IndexedDatasetTest, boundaries_must_rise_from_0_to_the_end) {
  for (const std::vector<int64_t>& documents :
       {std::vector<int64_t>{1, 3}, {0, 2}, {0, 4}, {0, 2, 1, 3}, {}}) {
    write_raw({.documents = documents});
    expect_refused("document boundaries must rise from 0 to the number of sequences, 3");
  }
}

TEST_F(IndexedDatasetTest, sequences_must_lie_in_the_file_side_by_side) {
  write_raw({.lengths = {2, -1, 3}});
  expect_refused("sequence 1 has length -1");
  write_raw({.pointers = {0, 5, 6}});
  expect_refused("sequence 1 has length 1 and byte offset 5");
  write_raw({.pointers = {0, 4, std::numeric_limits<int64_t>::max() - 1}});
  expect_refused("sequence 2 has length 3");
  write_raw({.pointers = {0, 6, 6}});
  expect_refused("document 0 is scattered: sequence 1 begins at byte 6, expected 4");
}

TEST_F(IndexedDatasetTest, ids_beyond_the_vocabulary_are_named) {
  write_raw({});
  const IndexedDataset dataset(prefix());
  EXPECT_FALSE(dataset.find_beyond(60001));
  EXPECT_EQ(dataset.largest_id(), 60000);
  const auto expect_named = [](const std::optional<BadToken>& bad) {
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->document, 2);
    EXPECT_EQ(bad->position, 2);
    EXPECT_EQ(bad->id, 60000);
    EXPECT_EQ(bad->largest_id, 60000);
  };
  expect_named(dataset.find_beyond(60000));
  // Reading names the same token, with its place in the document.
  std::vector<int32_t> two(2);
  expect_named(dataset.read(2, 1, two, 60000));
  EXPECT_NE(two[0], IndexedDataset::kBadId);
  EXPECT_EQ(two[1], IndexedDataset::kBadId);
  EXPECT_FALSE(dataset.read(2, 1, two, 60001));
  EXPECT_EQ(two[1], 60000);
}

/// A set of more than kWhole bytes: one document of zeros.
class LargeDatasetTest : public IndexedDatasetTest {
 protected:
  static constexpr int64_t kTokens = IndexedDataset::kWhole;  // tokens of 2 bytes
  void SetUp() override {
    IndexedDatasetTest::SetUp();
    IndexedDatasetWriter writer(prefix(), TokenType::kUint16);
    writer.add_document(std::vector<int32_t>(kTokens, 0));
    writer.finish();
  }
  void put(int64_t begin, int64_t count, uint16_t id) {
    std::fstream file(prefix().string() + ".bin", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(begin * 2);
    const std::vector<uint16_t> ids(static_cast<size_t>(count), id);
    file.write(reinterpret_cast<const char*>(ids.data()), count * 2);
  }
};

TEST_F(LargeDatasetTest, its_fingerprint_is_of_a_sample_and_one_bad_id_is_found_all_the_same) {
  const uint64_t zeros = IndexedDataset(prefix()).fingerprint();
  EXPECT_EQ(IndexedDataset(prefix()).fingerprint(), zeros);
  // A run of other tokens as long as an eighth of the set is met by one of 64 places.
  put(kTokens / 2, kTokens / 8, 7);
  const IndexedDataset dataset(prefix());
  EXPECT_NE(dataset.fingerprint(), zeros);
  EXPECT_TRUE(dataset.find_beyond(7));
  EXPECT_FALSE(dataset.find_beyond(8));
  put(kTokens / 3, 1, 8);
  EXPECT_EQ(IndexedDataset(prefix()).find_beyond(8).value().position, kTokens / 3);
}

TEST_F(IndexedDatasetTest, other_tokens_or_other_documents_have_another_fingerprint) {
  const auto of = [&](const std::vector<std::vector<int32_t>>& documents, TokenType type) {
    IndexedDatasetWriter writer(prefix(), type);
    for (const auto& document : documents) writer.add_document(document);
    writer.finish();
    return IndexedDataset(prefix()).fingerprint();
  };
  const uint64_t first = of({{1, 2, 3}, {4}}, TokenType::kUint8);
  EXPECT_EQ(of({{1, 2, 3}, {4}}, TokenType::kUint8), first);
  EXPECT_NE(of({{1, 2, 3}, {5}}, TokenType::kUint8), first);
  EXPECT_NE(of({{1, 2}, {3, 4}}, TokenType::kUint8), first);
  EXPECT_NE(of({{1, 2, 3}, {4}}, TokenType::kUint16), first);
}

TEST_F(IndexedDatasetTest, a_document_longer_than_a_sequence_may_be_has_several) {
  IndexedDatasetWriter writer(prefix(), TokenType::kUint8, 4);
  std::vector<int32_t> nine(9);
  std::iota(nine.begin(), nine.end(), 10);
  writer.add_document(nine);
  writer.add_document({});
  writer.append(std::vector<int32_t>{1, 2, 3});
  writer.append(std::vector<int32_t>{4});
  writer.end_document();
  writer.finish();
  const IndexedDataset dataset(prefix());
  EXPECT_EQ(dataset.num_documents(), 3);
  EXPECT_EQ(dataset.num_sequences(), 5);  // 4 + 4 + 1, 0, 4
  EXPECT_EQ(tokens(dataset, 0), nine);
  EXPECT_TRUE(tokens(dataset, 1).empty());
  EXPECT_EQ(tokens(dataset, 2), (std::vector<int32_t>{1, 2, 3, 4}));
}

TEST_F(IndexedDatasetTest, ids_that_are_no_ids_are_found) {
  IndexedDatasetWriter writer(prefix(), TokenType::kInt64);
  writer.add_document(std::vector<int32_t>{1, 2});
  writer.finish();
  std::string bytes;
  append<int64_t>(bytes, {1, int64_t{1} << 31});
  write_file_atomically(folder_ / "set.bin", bytes);
  std::vector<int32_t> two(2);
  EXPECT_EQ(IndexedDataset(prefix()).read(0, 0, two).value().id, int64_t{1} << 31);
  bytes.clear();
  append<int64_t>(bytes, {-1, 2});
  write_file_atomically(folder_ / "set.bin", bytes);
  EXPECT_EQ(IndexedDataset(prefix()).find_beyond(100).value().id, -1);
}

TEST_F(IndexedDatasetTest, the_writer_refuses_what_the_type_cannot_hold_and_leaves_nothing) {
  {
    IndexedDatasetWriter writer(prefix(), TokenType::kUint8);
    EXPECT_THROW(writer.add_document(std::vector<int32_t>{256}), Error);
    EXPECT_THROW(writer.add_document(std::vector<int32_t>{-1}), Error);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(IndexedDatasetTest, the_name_of_either_file_is_a_prefix_too) {
  write_raw({});
  EXPECT_EQ(IndexedDataset(folder_ / "set.idx").num_tokens(), 6);
  EXPECT_EQ(IndexedDataset(folder_ / "set.bin").num_tokens(), 6);
}

}  // namespace
}  // namespace distca
