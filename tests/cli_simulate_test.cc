// `distca simulate` as its users meet it; bad input is in bad_input_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CliSimulateTest : public FolderTest {};

/// Eight workers of a model whose attention is that of Llama 3 8B at tensor parallelism 8.
const Words kStep = {"--workload",
                     "distca/plan/testdata/workloads/pretrain_8x128k_0.json",
                     "model.num_attention_heads=4",
                     "model.num_key_value_heads=1",
                     "model.head_dim=128",
                     "model.dtype=bfloat16"};

TEST_F(CliSimulateTest, simulate_plays_the_plans_that_plan_shows) {
  const Words step =
      joined(kStep, {"batch.nano_batches=2", "model.hidden_size=512", "model.num_hidden_layers=2"});
  const Json planned = Json::parse(succeed(joined({"plan", "--summary-json"}, step)).out);
  const Words words = joined({"simulate"}, step);
  const Json json = Json::parse(succeed(joined(words, {"--json"})).out);
  EXPECT_EQ(json.at("plan_hash"), planned.at("plan_hash"));
  EXPECT_EQ(json.at("machine"), "h200");
  EXPECT_GT(json.at("step_s"), json.at("busy_s"));
  EXPECT_EQ(json.at("stages").at(0).at("name"), "workers");
  EXPECT_THAT(succeed(joined(words, {"--machine", "h100"})).out,
              AllOf(HasSubstr("machine h100\n"),
                    HasSubstr("plan hash " + json.at("plan_hash").get<std::string>()),
                    HasSubstr("s if no rank ever waited"), HasSubstr("linear_tflops")));
}

TEST_F(CliSimulateTest, a_stage_that_does_not_fit_is_named) {
  const std::string machine = R"({"format": "distca-machine", "version": 1, "name": "small",
      "attention": "h200", "numbers": {"peak_tflops": V, "linear_tflops": V, "attention_rate": V,
      "attention_call_us": V, "memory_gb_per_s": V, "copy_gb_per_s": V, "issue_us": V,
      "inside_gb_per_s": V, "inside_latency_us": V, "between_gb_per_s": V,
      "between_latency_us": V, "ranks_per_node": V, "in_order": V, "memory_gib": V}})";
  std::string text;
  for (const char c : machine)
    text += c == 'V' ? std::string(R"({"value": 1, "source": "assumed: one"})") : std::string(1, c);
  write_file_atomically(folder_ / "small.json", text);
  const std::string out =
      succeed(joined({"simulate", "--machine", (folder_ / "small.json").string()}, kStep)).out;
  EXPECT_THAT(out, HasSubstr("workers does not fit: rank "));
  EXPECT_THAT(out, HasSubstr("GiB, the machine has 1, in "));
}

}  // namespace
}  // namespace distca::testing
