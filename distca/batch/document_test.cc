#include "distca/batch/document.h"

#include <gtest/gtest.h>

#include "distca/batch/layout.h"

namespace distca {
namespace {

TEST(NanoBatch, ids_and_offsets_follow_the_lengths) {
  const NanoBatch batch = NanoBatch::from_lengths({3, 1, 4});
  EXPECT_EQ(batch.documents[2], (Document{2, 4}));
  EXPECT_EQ(batch.num_tokens(), 8);
  EXPECT_EQ(batch.cu_seqlens(), (std::vector<int64_t>{0, 3, 4, 8}));
}

TEST(Layout, tokens_of_a_worker_are_those_of_its_segments) {
  Layout layout;
  layout.workers = {{{0, {0, 128}}, {1, {0, 5}}}, {}};
  EXPECT_EQ(layout.num_tokens(0), 133);
  EXPECT_EQ(layout.num_tokens(1), 0);
}

}  // namespace
}  // namespace distca
