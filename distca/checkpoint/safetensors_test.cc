#include "distca/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "distca/base/error.h"
#include "distca/base/json.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

class safetensors : public ::testing::Test {
 protected:
  ~safetensors() override { std::filesystem::remove(path_); }
  /// Writes tensors whose bytes count up.
  void write(const std::vector<StoredTensor>& tensors) {
    std::string bytes = safetensors_header(tensors, {{"steps", "3"}});
    char next = 0;
    for (const StoredTensor& tensor : tensors) {
      for (int64_t i = 0; i < tensor.bytes(); ++i) bytes += next++;
    }
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), safetensors_bytes(tensors, {{"steps", "3"}}));
    write_file_atomically(path_, bytes);
  }
  /// A file with this header, and `data_bytes` zeros behind it.
  std::string error_of(const std::string& header, int64_t data_bytes) {
    const uint64_t size = header.size();
    std::string file(reinterpret_cast<const char*>(&size), sizeof(size));
    file += header + std::string(data_bytes, '\0');
    write_file_atomically(path_, file);
    try {
      SafetensorsFile{path_};
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
      EXPECT_THAT(error.what(), HasSubstr(path_.string()));
      return error.what();
    }
    return "";
  }

  const std::filesystem::path path_ =
      std::filesystem::path(::testing::TempDir()) / fmt::format("distca_safetensors_{}", getpid());
};

TEST_F(safetensors, what_was_written_is_read) {
  const std::vector<StoredTensor> tensors = {
      {.name = "b", .type = ScalarType::kFloat32, .shape = {3, 5}},
      {.name = "a", .type = ScalarType::kFloat64, .shape = {2}},
      {.name = "none", .type = ScalarType::kFloat32, .shape = {0, 4}},
      {.name = "c", .type = ScalarType::kBFloat16, .shape = {}}};
  write(tensors);
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"steps", "3"}}));
  EXPECT_EQ(read_safetensors_metadata(path_), file.metadata());
  ASSERT_EQ(file.tensors().size(), tensors.size());
  int next = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto& entry = file.at(tensor.name);
    EXPECT_EQ(entry.tensor, tensor);
    ASSERT_EQ(static_cast<int64_t>(file.bytes(entry).size()), tensor.bytes());
    for (const std::byte byte : file.bytes(entry)) EXPECT_EQ(static_cast<int>(byte), next++);
  }
  EXPECT_THROW(file.at("d"), Error);
}

TEST_F(safetensors, a_name_with_a_nul_is_that_name) {
  const std::string name("a\0b", 3);
  const std::vector<StoredTensor> tensors = {{.name = "a", .shape = {2}},
                                             {.name = name, .shape = {3}}};
  const std::string header = safetensors_header(tensors, {{"a", "1"}, {name, "2"}});
  const SafetensorsHeader read = parse_safetensors_header(
      std::as_bytes(std::span(header)), static_cast<int64_t>(header.size()) + 20, "x");
  ASSERT_EQ(read.tensors.size(), 2U);
  EXPECT_EQ(read.tensors[1].tensor, tensors[1]);
  EXPECT_EQ(read.metadata, (SafetensorsMetadata{{"a", "1"}, {name, "2"}, {"format", "pt"}}));
}

/// With none of the reader's code.
TEST_F(safetensors, bytes_are_those_of_the_format) {
  write({{.name = "w", .type = ScalarType::kFloat32, .shape = {2, 2}}});
  const std::string file = read_file(path_);
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  EXPECT_EQ(size % 8, 0u);
  EXPECT_EQ(file.size(), 8 + size + 16);
  const Json header = Json::parse(file.substr(8, size));
  EXPECT_EQ(header, Json::parse(R"({"__metadata__": {"format": "pt", "steps": "3"},
      "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}})"));
}

TEST_F(safetensors, faults_are_named) {
  EXPECT_THAT(error_of("{", 0), HasSubstr("not JSON"));
  EXPECT_THAT(error_of("[]", 0), HasSubstr("must be an object"));
  const auto with = [](const std::string& fields) { return R"({"w": {)" + fields + "}}"; };
  EXPECT_THAT(error_of(with(R"("shape": [2], "data_offsets": [0, 8])"), 8),
              HasSubstr("w.dtype is missing"));
  EXPECT_THAT(error_of(with(R"("dtype": "Q8", "shape": [2], "data_offsets": [0, 8])"), 8),
              HasSubstr("must be F64, F32, BF16 or F16, not \"Q8\""));
  EXPECT_THAT(error_of(with(R"("dtype": "F32", "shape": [3], "data_offsets": [0, 8])"), 8),
              HasSubstr("must be 12 bytes apart"));
  EXPECT_THAT(error_of(with(R"("dtype": "F32", "shape": [2], "data_offsets": [8, 0])"), 8),
              HasSubstr("must be a begin and an end"));
  EXPECT_THAT(error_of(with(R"("dtype": "F32", "shape": [2], "data_offsets": [4, 12])"), 12),
              HasSubstr("does not begin where the tensor before it ends"));
  EXPECT_THAT(error_of(with(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8])"), 9),
              HasSubstr("it has 78 bytes and should have 77"));
  EXPECT_THAT(
      error_of(with(R"("dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8])"),
               8),
      HasSubstr("of at most 2^48 elements"));
}

TEST_F(safetensors, a_cut_or_missing_file_has_no_metadata) {
  EXPECT_TRUE(read_safetensors_metadata(path_).empty());
  write({{.name = "weight", .type = ScalarType::kFloat32, .shape = {16}}});
  EXPECT_FALSE(read_safetensors_metadata(path_).empty());
  for (const int64_t size : {120, 40, 7, 0}) {  // in the data, the header, its size, nothing
    std::filesystem::resize_file(path_, size);
    EXPECT_TRUE(read_safetensors_metadata(path_).empty()) << size;
  }
  write_file_atomically(path_, "no header, but longer than a size");
  EXPECT_TRUE(read_safetensors_metadata(path_).empty());
}

}  // namespace
}  // namespace distca
