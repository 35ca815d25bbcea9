#include "distca/train/loader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "distca/base/error.h"

namespace distca {
namespace {

TEST(loader, segments_carry_ids_targets_and_positions_of_their_document) {
  const auto prefix =
      std::filesystem::path(testing::TempDir()) / fmt::format("distca_loader_{}", getpid());
  std::vector<int32_t> first(10), second(5);
  std::iota(first.begin(), first.end(), 0);
  std::iota(second.begin(), second.end(), 100);
  IndexedDatasetWriter writer(prefix, TokenType::kUint8);
  writer.add_document(first);
  writer.add_document(second);
  writer.finish();
  const DataBlend data(prefix);

  // Document 0: tokens 2..7 of the first, cut before its end. Document 1: all of the second.
  NanoBatchSource source{.nano_batch = NanoBatch::from_lengths({6, 5}),
                         .sources = {{.document = 0, .offset = 2, .num_targets = 6},
                                     {.document = 1, .offset = 0, .num_targets = 4}}};
  const LocalTokens local = load_tokens(data, source, {{0, {4, 6}}, {1, {0, 5}}, {0, {0, 1}}});
  EXPECT_EQ(local.ids, (std::vector<int64_t>{6, 7, 100, 101, 102, 103, 104, 2}));
  EXPECT_EQ(local.targets, (std::vector<int64_t>{7, 8, 101, 102, 103, 104, kNoTarget, 3}));
  EXPECT_EQ(local.positions, (std::vector<int64_t>{4, 5, 0, 1, 2, 3, 4, 0}));
  EXPECT_TRUE(load_tokens(data, source, {}).ids.empty());
  EXPECT_NO_THROW(load_tokens(data, source, {{0, {4, 6}}}, 9));
  EXPECT_THROW(load_tokens(data, source, {{0, {4, 6}}}, 8), Error) << "a target is an id too";
  std::filesystem::remove(prefix.string() + ".bin");
  std::filesystem::remove(prefix.string() + ".idx");
}

}  // namespace
}  // namespace distca
