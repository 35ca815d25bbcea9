#include "distca/plan/plan_batch_input.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/hash.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PlanBatchInput : public ::testing::Test {
 protected:
  ~PlanBatchInput() override { std::filesystem::remove(path_); }

  std::filesystem::path file(const std::string& contents) {
    write_file_atomically(path_, contents);
    return path_;
  }
  template <typename Read>
  std::string error(const Read& read, const std::string& contents) {
    try {
      read(file(contents));
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "no error";
  }

  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() /
      fmt::format("distca_{}_{}.json",
                  ::testing::UnitTest::GetInstance()->current_test_info()->name(), getpid());
};

TEST_F(PlanBatchInput, a_workload_is_one_nano_batch) {
  const Workload workload = read_workload(
      file(R"({"ranks": 2, "tokens_per_rank": 128, "source": "x", "doc_lens": [200, 56]})"));
  EXPECT_EQ(workload.ranks, 2);
  EXPECT_EQ(workload.nano_batch, NanoBatch::from_lengths({200, 56}));
}

TEST_F(PlanBatchInput, a_wrong_workload_is_refused_with_what_is_wrong) {
  const auto message = [this](const std::string& text) { return error(read_workload, text); };
  EXPECT_THAT(message("[1, 2]"), HasSubstr("no \"ranks\""));
  EXPECT_THAT(message(R"({"ranks": 2, "tokens_per_rank": 1})"), HasSubstr("no \"doc_lens\""));
  EXPECT_THAT(message(R"({"ranks": 0, "tokens_per_rank": 1, "doc_lens": []})"),
              AllOf(HasSubstr("\"ranks\" must be an integer in 1"), HasSubstr("not 0")));
  EXPECT_THAT(message(R"({"ranks": 1, "tokens_per_rank": 9, "doc_lens": [9.5]})"),
              HasSubstr("\"doc_lens\"[0]"));
  EXPECT_THAT(message(R"({"ranks": 1, "tokens_per_rank": 9, "doc_lens": 9})"), HasSubstr("a list"));
  EXPECT_THAT(message(R"({"ranks": 1, "tokens_per_rank": 9, "doc_lens": [8]})"),
              HasSubstr("hold 8 tokens, ranks x tokens_per_rank is 9"));
  EXPECT_THAT(message(R"({"ranks": 1, "tokens_per_rank": 9, "source": 1, "doc_lens": [9]})"),
              HasSubstr("\"source\" must be a string"));
  EXPECT_THAT(message("{"), HasSubstr(path_.string()));
}

TEST_F(PlanBatchInput, lengths_are_a_list_of_positive_integers) {
  EXPECT_THAT(read_lengths(file("[3, 1, 2]")), ElementsAre(3, 1, 2));
  EXPECT_THAT(read_lengths(file("[]")), ElementsAre());
  EXPECT_THAT(error(read_lengths, "[3, 0]"), AllOf(HasSubstr("[1] must be"), HasSubstr("not 0")));
  EXPECT_THAT(error(read_lengths, "[3, \"4\"]"), HasSubstr("[1] must be"));
  EXPECT_THAT(error(read_lengths, "[18446744073709551615]"), HasSubstr("[0] must be"));
  EXPECT_THAT(error(read_lengths, "{}"), HasSubstr("a list"));
}

struct List {
  const char* name;
  size_t documents;
  int64_t tokens, longest;
  const char* hash;  // covers the order, which benchmarks follow
};

TEST(LengthsAtHand, are_those_that_their_page_states) {
  for (const List& list : {List{"pretrain", 99'519, 394'273'078, 124'913, "0a214762e237ebce"},
                           List{"prolong", 77'932, 237'840'913, 340'149, "f0816f44bab67c21"}}) {
    const std::vector<int64_t> lengths =
        read_lengths(fmt::format("distca/plan/testdata/lengths_{}.json", list.name));
    EXPECT_EQ(lengths.size(), list.documents) << list.name;
    EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), list.tokens)
        << list.name;
    EXPECT_EQ(std::ranges::max(lengths), list.longest) << list.name;
    EXPECT_EQ(hash_hex(fmt::format("{}", fmt::join(lengths, ","))), list.hash) << list.name;
  }
}

TEST_F(PlanBatchInput, a_missing_file_is_bad_input) {
  try {
    read_lengths("/nowhere/lengths.json");
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/lengths.json"));
  }
}

}  // namespace
}  // namespace distca
