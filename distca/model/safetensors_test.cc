#include "distca/model/safetensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "distca/base/error.h"
#include "distca/base/file.h"

namespace distca {
namespace {

std::filesystem::path scratch(const char* name) {
  return std::filesystem::path(testing::TempDir()) /
         fmt::format("distca_safetensors_{}_{}", getpid(), name);
}

TEST(safetensors, round_trip_keeps_every_bit) {
  const auto path = scratch("round_trip");
  const at::Tensor a = at::randn({3, 5}), b = at::randn({2}, at::kDouble),
                   c = at::randn({4, 2}).to(at::kBFloat16);
  write_safetensors(path, {"a", "b", "c"}, {a, b, c});
  const auto read = read_safetensors(path);
  ASSERT_EQ(read.size(), 3u);
  EXPECT_TRUE(at::equal(read.at("a"), a));
  EXPECT_TRUE(at::equal(read.at("b"), b));
  EXPECT_TRUE(at::equal(read.at("c"), c));
  std::filesystem::remove(path);
}

TEST(safetensors, a_cut_or_missing_file_is_one_line) {
  const auto path = scratch("cut");
  EXPECT_THROW(read_safetensors(path), Error);
  write_safetensors(path, {"weight"}, {at::ones({16})});
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  try {
    read_safetensors(path);
    FAIL() << "a cut file was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    EXPECT_NE(std::string(error.what()).find("weight"), std::string::npos);
  }
  write_file_atomically(path, "short");
  EXPECT_THROW(read_safetensors(path), Error);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace distca
