#include "distca/model/safetensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "distca/base/file.h"
#include "distca/base/json.h"

namespace distca {
namespace {

std::filesystem::path scratch(const char* name) {
  return std::filesystem::path(testing::TempDir()) /
         fmt::format("distca_safetensors_{}_{}", getpid(), name);
}

/// All tensors of a file, read as the format says, with none of the writer's code.
std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& path) {
  const std::map<std::string, at::ScalarType> types = {
      {"F32", at::kFloat}, {"F64", at::kDouble}, {"BF16", at::kBFloat16}};
  std::string file = read_file(path);
  uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), sizeof(header_size));
  const Json header = Json::parse(file.substr(sizeof(header_size), header_size));
  char* const data = file.data() + sizeof(header_size) + header_size;
  std::map<std::string, at::Tensor> tensors;
  size_t bytes = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto shape = entry.at("shape").get<std::vector<int64_t>>();
    const auto offsets = entry.at("data_offsets").get<std::array<size_t, 2>>();
    const at::Tensor there = at::from_blob(data + offsets[0], shape, types.at(entry.at("dtype")));
    EXPECT_EQ(offsets[1] - offsets[0], there.nbytes()) << name;
    tensors.emplace(name, there.clone());
    bytes += there.nbytes();
  }
  EXPECT_EQ(file.size(), sizeof(header_size) + header_size + bytes);
  return tensors;
}

TEST(safetensors, round_trip_keeps_every_bit) {
  const auto path = scratch("round_trip");
  const at::Tensor a = at::randn({3, 5}), b = at::randn({2}, at::kDouble),
                   c = at::randn({4, 2}).to(at::kBFloat16);
  write_safetensors(path, {"a", "b", "c"}, {a, b, c});
  const auto read = read_tensors(path);
  ASSERT_EQ(read.size(), 3u);
  EXPECT_TRUE(at::equal(read.at("a"), a));
  EXPECT_TRUE(at::equal(read.at("b"), b));
  EXPECT_TRUE(at::equal(read.at("c"), c));
  std::filesystem::remove(path);
}

TEST(safetensors, a_cut_or_missing_file_has_no_metadata) {
  const auto path = scratch("cut");
  EXPECT_TRUE(read_safetensors_metadata(path).empty());
  write_safetensors(path, {"weight"}, {at::ones({16})});
  EXPECT_EQ(read_safetensors_metadata(path), (SafetensorsMetadata{{"format", "pt"}}));
  for (const int64_t size : {40, 7, 0}) {  // within the header, within its size, nothing
    std::filesystem::resize_file(path, size);
    EXPECT_TRUE(read_safetensors_metadata(path).empty()) << size;
  }
  write_file_atomically(path, "no header, but longer than a size");
  EXPECT_TRUE(read_safetensors_metadata(path).empty());
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace distca
