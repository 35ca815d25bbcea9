// `distca verify` compares a batch on many workers with one worker, and writes nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CliVerifyTest : public TrainingTest {
 protected:
  /// The arguments of `distca verify` on the model and the data of the trainings.
  Words verify(const Words& more) const {
    Words words = arguments(more);
    words[0] = "verify";
    return words;
  }
};

TEST_F(CliVerifyTest, any_number_of_workers_gives_the_same_and_no_file_is_written) {
  const std::vector<std::string> before = files_below(folder_);
  for (const char* workers : {"1", "2", "3"}) {
    const Outcome outcome = succeed(verify({"--workers", workers, "train.overlap=within"}));
    EXPECT_EQ(outcome.err, "");
    EXPECT_THAT(outcome.out, AllOf(StartsWith(fmt::format("Comparing {} worker", workers)),
                                   HasSubstr(" with one on the first batch of " + prefix_.string() +
                                             ", in float64 (the run computes in float32)\n"),
                                   HasSubstr("2 nano-batches, "), HasSubstr(" 1,024 tokens, "),
                                   HasSubstr("scheduler balanced, overlap within, keys kept; "),
                                   HasSubstr("aten-cpu\n"), HasSubstr(", the worst of 21 "),
                                   EndsWith("\nverify: the same to 1e-10\n")));
  }
  EXPECT_EQ(files_below(folder_), before);
}

TEST_F(CliVerifyTest, the_servers_and_the_type_are_those_of_the_run) {
  EXPECT_THAT(succeed(verify({"servers.dedicated=1", "servers.in_place=false"})).out,
              AllOf(HasSubstr("\n  2 workers   1 dedicated server, none in place, scheduler "),
                    EndsWith("\nverify: the same to 1e-10\n")));
  EXPECT_THAT(succeed(verify({"--dtype", "run", "--all"})).out,
              AllOf(HasSubstr(", in float32\n"), HasSubstr("  attention   cpu-"),
                    HasSubstr("\ngradient of model.layers.1.self_attn.k_proj.weight "),
                    HasSubstr("\ngradient of lm_head.weight ")));
}

TEST_F(CliVerifyTest, json_has_every_gradient) {
  const Json json = Json::parse(succeed(verify({"--workers", "3", "--json"})).out);
  EXPECT_EQ(json.at("same"), true);
  EXPECT_EQ(json.at("workers"), 3);
  EXPECT_EQ(json.at("dtype"), "float64");
  EXPECT_EQ(json.at("gradients").size(), 21u);
  for (const Json& gradient : json.at("gradients")) {
    EXPECT_LE(gradient.at("difference").get<double>(), 1e-10) << gradient;
    EXPECT_EQ(gradient.at("bound"), 1e-10);
  }
  EXPECT_NEAR(json.at("loss").get<double>(), json.at("loss_of_one").get<double>(), 1e-9);
}

}  // namespace
}  // namespace distca::testing
