#include "distca/plan/sample_workloads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "distca/base/error.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSequence = 524'288;

std::vector<int64_t> lengths_of(const NanoBatch& workload) {
  std::vector<int64_t> lengths;
  for (const Document& document : workload.documents) lengths.push_back(document.length);
  return lengths;
}

std::map<int64_t, int> counted(const std::vector<NanoBatch>& workloads) {
  std::map<int64_t, int> counts;
  for (const NanoBatch& workload : workloads) {
    for (const int64_t length : lengths_of(workload)) ++counts[length];
  }
  return counts;
}

TEST(SampleWorkloads, every_nano_batch_is_full_and_its_sequences_too) {
  const std::vector<int64_t> lengths{1000, 70'000, 3, 65'535, 65'536, 9000, 120'000};
  for (const SampleKind kind : {SampleKind::kPretrain, SampleKind::kProlong}) {
    const auto workloads = sample_workloads(lengths, {.kind = kind, .count = 5, .ranks = 8});
    ASSERT_EQ(workloads.size(), 5);
    for (const NanoBatch& workload : workloads) {
      EXPECT_EQ(workload.num_tokens(), 8 * 131'072);
      int64_t used = 0;
      for (const int64_t length : lengths_of(workload)) {
        EXPECT_EQ(length % 16, 0);
        EXPECT_LE(used % kSequence + length, kSequence);  // a sequence's end cuts
        used += length;
      }
    }
  }
}

TEST(SampleWorkloads, pretrain_drops_the_second_half_of_the_short_ones) {
  std::vector<int64_t> lengths(32, 1024);  // x 8: 8,192
  lengths.insert(lengths.end(), 32, 2048);
  lengths.push_back(65'536);  // a sequence long, there four times
  const auto workloads = sample_workloads(lengths, {.count = 17, .ranks = 4});
  // A pass is 4 sequences of long documents and half a sequence of short ones: 17 sequences are
  // nearly 4 passes. A cut leaves multiples of 8,192, of which 16,384 would be rare.
  int64_t short_ones = 0;
  for (const NanoBatch& workload : workloads) {
    for (const int64_t length : lengths_of(workload)) short_ones += length == 8192 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(short_ones), 4 * 32, 32);
}

TEST(SampleWorkloads, without_cuts_a_pass_holds_exactly_what_is_kept) {
  // 16 kept documents of 4,096 (x 8: 32,768) fill one sequence, whatever their order.
  const std::vector<int64_t> lengths(32, 4096);
  const auto workloads = sample_workloads(lengths, {.count = 2, .ranks = 4});
  for (const NanoBatch& workload : workloads) {
    EXPECT_EQ(lengths_of(workload), std::vector<int64_t>(16, 32'768));
  }
  // 4 copies of a long document, each as long as a sequence.
  const auto long_ones = sample_workloads({65'536}, {.count = 1, .ranks = 16});
  EXPECT_EQ(lengths_of(long_ones[0]), std::vector<int64_t>(4, kSequence));
}

TEST(SampleWorkloads, prolong_lengthens_three_in_ten_long_documents_and_nothing_else) {
  std::vector<int64_t> lengths(4000, 100'000);
  lengths.insert(lengths.end(), 2000, 1008);  // half of them kept
  const auto workloads =
      sample_workloads(lengths, {.kind = SampleKind::kProlong, .count = 40, .ranks = 512});
  auto counts = counted(workloads);
  // 0.7 of 16,000 keep their length; a sequence's end cuts 0.19 of those.
  EXPECT_NEAR(counts[1008] / static_cast<double>(counts[100'000]), 1000 / (0.7 * 0.81 * 16'000),
              0.02);
  const double tokens = 40.0 * 512 * 131'072;
  EXPECT_NEAR(counts[100'000] * 100'000 / tokens, 0.81 * 0.308, 0.02);
}

TEST(SampleWorkloads, the_seed_decides_and_a_second_pass_has_another_order) {
  std::vector<int64_t> lengths;
  for (int64_t i = 1; i <= 2048; ++i) lengths.push_back(i);
  SampleOptions options{.count = 40, .ranks = 4};
  const auto first = sample_workloads(lengths, options);
  const auto again = sample_workloads(lengths, options);
  options.seed = 43;
  const auto other = sample_workloads(lengths, options);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i], again[i]);
    EXPECT_NE(first[i], other[i]);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(first[i], first[j]);
  }
}

TEST(SampleWorkloads, what_cannot_be_sampled_is_refused) {
  const auto message = [](const std::vector<int64_t>& lengths, const SampleOptions& options) {
    try {
      sample_workloads(lengths, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message({}, {.ranks = 8}), HasSubstr("a list of 0 document lengths"));
  EXPECT_THAT(message({5}, {.ranks = 8}), HasSubstr("leaves none"));
  EXPECT_THAT(message({5, 6}, {.ranks = 3}), HasSubstr("3 x 131072 tokens is no whole number"));
}

}  // namespace
}  // namespace distca
