#include "distca/train/loader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "distca/base/error.h"
#include "distca/config/config.h"

namespace distca {
namespace {

TEST(loader, segments_carry_ids_targets_and_positions_of_their_document) {
  const auto prefix =
      std::filesystem::path(::testing::TempDir()) / fmt::format("distca_loader_{}", getpid());
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
  Config config;
  const auto load = [&](const std::vector<Segment>& segments) {
    return load_tokens(config, data, source, segments);
  };
  const LocalTokens local = load({{0, {4, 6}}, {1, {0, 5}}, {0, {0, 1}}});
  EXPECT_EQ(local.ids, (std::vector<int64_t>{6, 7, 100, 101, 102, 103, 104, 2}));
  EXPECT_EQ(local.targets, (std::vector<int64_t>{7, 8, 101, 102, 103, 104, kNoTarget, 3}));
  EXPECT_EQ(local.positions, (std::vector<int64_t>{4, 5, 0, 1, 2, 3, 4, 0}));
  EXPECT_TRUE(load({}).ids.empty());
  config.model.vocab_size = 9;
  EXPECT_NO_THROW(load({{0, {4, 6}}}));
  config.model.vocab_size = 8;
  EXPECT_THROW(load({{0, {4, 6}}}), Error) << "a target is an id too";

  // The model does not have 5 to 8 of the tokens 2 to 8.
  config.model.vocab_size = 5;
  config.data.bad_tokens = "skip_target";
  const LocalTokens skipped = load({{0, {0, 6}}});
  EXPECT_EQ(skipped.ids, (std::vector<int64_t>{2, 3, 4, 0, 0, 0}));
  EXPECT_EQ(skipped.targets,
            (std::vector<int64_t>{3, 4, kNoTarget, kNoTarget, kNoTarget, kNoTarget}));
  EXPECT_EQ(skipped.bad_tokens, 3);
  EXPECT_EQ(skipped.targets_left_out, 4);
  // Each part counts its own, wherever the document is cut.
  const LocalTokens begin = load({{0, {0, 2}}}), rest = load({{0, {2, 6}}});
  EXPECT_EQ(begin.bad_tokens, 0);
  EXPECT_EQ(begin.targets_left_out, 0);
  EXPECT_EQ(rest.bad_tokens, 3);
  EXPECT_EQ(rest.targets_left_out, 4);
  config.data.bad_tokens = "1";
  const LocalTokens replaced = load({{0, {0, 6}}});
  EXPECT_EQ(replaced.ids, (std::vector<int64_t>{2, 3, 4, 1, 1, 1}));
  EXPECT_EQ(replaced.targets, (std::vector<int64_t>{3, 4, 1, 1, 1, 1}));
  EXPECT_EQ(replaced.bad_tokens, 3);
  EXPECT_EQ(replaced.targets_left_out, 0);
  std::filesystem::remove(prefix.string() + ".bin");
  std::filesystem::remove(prefix.string() + ".idx");
}

}  // namespace
}  // namespace distca
