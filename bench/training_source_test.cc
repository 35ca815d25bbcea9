#include "bench/training_source.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/batch/indexed_dataset.h"

namespace distca::bench {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr BatchShape kBatchShape{.nano_batch_tokens = 1024, .nano_batches = 2, .workers = 2};

class BatchSourceTest : public ::testing::Test {
 protected:
  BatchSourceTest()
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("distca_source_{}", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~BatchSourceTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

void expect_full_batches(const BatchSource& source, size_t count, int64_t longest) {
  EXPECT_EQ(source.batches.size(), count);
  for (const BatchLengths& batch : source.batches) {
    EXPECT_THAT(batch, SizeIs(kBatchShape.nano_batches));
    EXPECT_EQ(num_tokens(batch), kBatchShape.tokens());
    for (const auto& lengths : batch) EXPECT_THAT(lengths, Each(::testing::Le(longest)));
  }
}

TEST_F(BatchSourceTest, real_documents_fill_batches_and_are_cut_at_three_quarters_of_one) {
  IndexedDatasetWriter writer(folder_ / "set", TokenType::kUint8);
  for (const size_t length : {3000, 10, 200}) writer.add_document(std::vector<int32_t>(length, 1));
  writer.finish();
  const BatchSource source = real_source(folder_ / "set", kBatchShape, 3, 1);
  expect_full_batches(source, 3, 768);
  EXPECT_EQ(*std::ranges::max_element(merged(source.batches[0])[0]), 768);
  EXPECT_NE(source.batches[0], source.batches[1]);
  EXPECT_EQ(source.batches, real_source(folder_ / "set", kBatchShape, 3, 1).batches);
}

TEST_F(BatchSourceTest, long_tailed_documents_fill_batches_and_are_at_most_half_of_one) {
  write_file_atomically(folder_ / "lengths_pretrain.json", "[100, 9000, 5000, 70000, 30000, 4000]");
  expect_full_batches(long_tailed_source(folder_, kBatchShape, 4, 1), 4, 512);
}

TEST_F(BatchSourceTest, a_missing_file_is_named_with_what_makes_it) {
  try {
    real_source(folder_ / "none", kBatchShape, 1, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("none.idx does not exist: `make demo`"));
    EXPECT_EQ(error.exit_code(), 2);
  }
  EXPECT_THROW(long_tailed_source(folder_, kBatchShape, 1, 1), Error);
}

TEST(EqualDocuments, have_about_as_many_pairs_and_the_same_tokens) {
  const BatchLengths halves(2, {512, 512}), eighths(2, std::vector<int64_t>(8, 128));
  EXPECT_EQ(equal_documents(kBatchShape, num_pairs(halves)), halves);
  EXPECT_EQ(equal_documents(kBatchShape, num_pairs(eighths) + 1000), eighths);
  EXPECT_EQ(equal_documents(kBatchShape, INT64_MAX / 2), halves)
      << "no worker may share a document";
}

}  // namespace
}  // namespace distca::bench
