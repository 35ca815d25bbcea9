// `distca plan --program` and the page about it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/file.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kWorkload = "distca/plan/testdata/workloads/pretrain_8x128k_0.json";

TEST(CliPlanProgram, is_printed_once_those_of_all_ranks_are_valid) {
  const auto program = [](const std::vector<std::string>& options) {
    std::vector<std::string> command{"plan", "--workload", kWorkload, "--program", "--layers", "2"};
    command.insert(command.end(), options.begin(), options.end());
    return command;
  };
  const Outcome ping_pong = run_distca(program({"--rank", "7"}));
  ASSERT_EQ(ping_pong.exit_code, 0) << ping_pong.err;
  EXPECT_THAT(ping_pong.out,
              AllOf(StartsWith("Rank 7 of 8, overlap ping-pong, nano-batches: 2, layers: 2; "),
                    HasSubstr("valid with the programs of all ranks\n"),
                    ContainsRegex("comm +backward layer 1 combine of nano-batch 1 .* tag [0-9]+, "
                                  "[0-9]+ bytes (to|from) "),
                    HasSubstr(": qkv_in, ")));
  const Outcome server = run_distca(program(
      {"--capacity", "0,0,0,0,0,0,0,0,1", "--rank", "8", "--overlap", "within", "--redispatch"}));
  ASSERT_EQ(server.exit_code, 0) << server.err;
  EXPECT_THAT(server.out, AllOf(HasSubstr("(a dedicated server), overlap within"),
                                HasSubstr(" redispatch "), Not(HasSubstr(" pre_attention "))));
}

TEST(CliPlanProgram, is_what_the_page_shows) {
  const Outcome outcome = run_distca(
      {"plan", "--workload", kWorkload, "--workers", "2", "--capacity", "1,1,1", "--program"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string page = read_file("docs/program.md");
  EXPECT_THAT(page, HasSubstr(std::string("distca plan --workload ") + kWorkload + " \\\n"));
  EXPECT_THAT(page, HasSubstr("        --workers 2 --capacity 1,1,1 --program\n"));
  EXPECT_THAT(page, HasSubstr("```\n" + outcome.out + "```\n"));
}

}  // namespace
}  // namespace distca::testing
