// `distca simulate` as its users meet it; bad input is in bad_input_test.cc.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_EQ(json.at("ranks"), 8);
  EXPECT_EQ(json.at("load_after").size(), 8u);
  EXPECT_GT(json.at("step_s"), json.at("busy_s"));
  EXPECT_EQ(json.at("stages").at(0).at("name"), "workers");
  const Outcome of_h100 = succeed(joined(words, {"--machine", "h100"}));
  EXPECT_THAT(of_h100.out,
              AllOf(HasSubstr("machine h100\n"),
                    HasSubstr("plan hash " + json.at("plan_hash").get<std::string>()),
                    HasSubstr("s if no rank ever waited"), HasSubstr("linear_tflops")));
  EXPECT_THAT(of_h100.err, HasSubstr("note: machine h100 is of GPUs, and train.device = cpu; "));
}

TEST_F(CliSimulateTest, a_stage_that_does_not_fit_is_named) {
  const std::string machine = R"({"format": "distca-machine", "version": 2, "name": "small",
      "attention": "h200", "numbers": {"peak_tflops": V, "linear_tflops": V, "phase_rate": V,
      "attention_rate": V, "issue_gb_per_s": V, "core_gb_per_s": V, "step_us": V,
      "attention_call_us": V, "memory_gb_per_s": V, "copy_gb_per_s": V, "issue_us": V,
      "inside_gb_per_s": V, "inside_latency_us": V, "between_gb_per_s": V,
      "between_latency_us": V, "burst_kib": V, "ranks_per_node": V, "in_order": V, "memory_gib": V}})";
  std::string text;
  for (const char c : machine)
    text += c == 'V' ? std::string(R"({"value": 1, "source": "assumed: one"})") : std::string(1, c);
  write_file_atomically(folder_ / "small.json", text);
  const std::string out =
      succeed(joined({"simulate", "--machine", (folder_ / "small.json").string()}, kStep)).out;
  EXPECT_THAT(out, HasSubstr("workers does not fit: rank "));
  EXPECT_THAT(out, HasSubstr("GiB, the machine has 1, in "));
}

/// A small step of two stages, each of one server of two ranks that divide its layers.
const Words kDividedStep = {"simulate",
                            "--lengths",
                            "distca/plan/testdata/lengths_pretrain.json",
                            "--workers",
                            "4",
                            "batch.nano_batches=2",
                            "batch.nano_batch_tokens=8192",
                            "batch.max_document_tokens=8192",
                            "model.hidden_size=256",
                            "model.num_hidden_layers=2",
                            "model.num_attention_heads=4",
                            "model.num_key_value_heads=2",
                            "model.head_dim=64",
                            "model.vocab_size=512",
                            "parallel.pipeline_model_parallel_size=2",
                            "parallel.tensor_model_parallel_size=2"};

TEST_F(CliSimulateTest, the_trace_of_a_step_is_as_long_as_that) {
  const std::string file = (folder_ / "new" / "trace.json").string();
  const Json json = Json::parse(succeed(joined(kDividedStep, {"--trace", file, "--json"})).out);
  const std::string table = succeed({"trace", file}).out;
  EXPECT_THAT(
      table,
      AllOf(HasSubstr("2 of 4 ranks, step 1, "), HasSubstr("predicted for machine h200\n"),
            HasSubstr("\n0 worker, stage 0, tensor 0 "),
            HasSubstr("\n2 worker, stage 1, tensor 0 "), HasSubstr("backward core_attention")));
  EXPECT_THAT(table, Not(HasSubstr("whose issue is not in the trace")));
  const Json traced = Json::parse(succeed({"trace", file, "--json"}).out);
  for (const Json& rank : traced.at("ranks")) {
    const Json& total = rank.at("total");
    EXPECT_NEAR(1e-9 * total.at("step_ns").get<double>(), json.at("step_s"), 1e-9);
    int64_t parts = 0;
    for (const auto& [part, ns] : total.at("parts").items()) parts += ns.get<int64_t>();
    EXPECT_EQ(parts, total.at("step_ns"));
    EXPECT_GT(total.at("parts").at("tensor_ns"), 0) << "waits for ranks that do the same";
  }
}

TEST_F(CliSimulateTest, the_memory_of_each_stage_over_time_is_in_json_text_and_trace) {
  const std::string file = (folder_ / "trace.json").string();
  const Json json = Json::parse(succeed(joined(kDividedStep, {"--trace", file, "--json"})).out);
  std::map<int64_t, int64_t> traced;  // [rank] the most bytes
  const Json trace = Json::parse(read_file(file));
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "C") continue;
    EXPECT_EQ(event.at("name"), "memory");
    int64_t& most = traced[event.at("pid").get<int64_t>()];
    most = std::max(most, event.at("args").at("bytes").get<int64_t>());
  }
  const std::string out = succeed(kDividedStep).out;
  ASSERT_EQ(json.at("stages").size(), 2u);
  for (const Json& stage : json.at("stages")) {
    const auto points = stage.at("memory").get<std::vector<std::pair<double, int64_t>>>();
    EXPECT_LE(points.size(), 200u);
    const auto most = std::ranges::max_element(points, {}, &std::pair<double, int64_t>::second);
    EXPECT_EQ(most->second, stage.at("peak_bytes"));
    EXPECT_EQ(most->first, stage.at("peak_at_ms"));
    EXPECT_EQ(traced.at(stage.at("peak_rank").get<int64_t>()), stage.at("peak_bytes"));
    EXPECT_THAT(out, HasSubstr(fmt::format("{:.3f}  {}\n", most->first,
                                           stage.at("peak_in").get<std::string>())));
  }
}

TEST_F(CliSimulateTest, a_prediction_is_compared_with_another) {
  const std::string first = (folder_ / "first.json").string(),
                    slower = (folder_ / "slower.json").string();
  EXPECT_THAT(succeed(joined(kDividedStep, {"--trace", first})).out,
              HasSubstr("distca trace " + first));
  succeed(joined(kDividedStep, {"--trace", slower, "--machine", "h100"}));
  const Json same = Json::parse(succeed({"trace", first, "--against", first, "--json"}).out);
  EXPECT_EQ(same.at("step").at("off_ms"), 0);
  const Json other = Json::parse(succeed({"trace", first, "--against", slower, "--json"}).out);
  double off_ms = 0;
  for (const Json& one : other.at("operations")) off_ms += one.at("off_ms").get<double>();
  EXPECT_NEAR(off_ms, other.at("step").at("off_ms"), 1e-6);
  EXPECT_THAT(succeed({"trace", first, "--against", slower}).out,
              AllOf(HasSubstr("A step is predicted at "), HasSubstr("Most of all differs ")));
}

TEST_F(CliSimulateTest, find_best_prints_words_by_which_simulate_predicts_the_same) {
  const Words step = {"simulate",
                      "--lengths",
                      "distca/plan/testdata/lengths_pretrain.json",
                      "model.num_attention_heads=4",
                      "model.num_key_value_heads=2",
                      "model.head_dim=128",
                      "model.hidden_size=512",
                      "model.num_hidden_layers=2",
                      "model.dtype=bfloat16",
                      "batch.nano_batches=2",
                      "batch.nano_batch_tokens=16384",
                      "batch.max_document_tokens=8192"};
  const std::string kept = folder_ / "best.json";
  const Words find = joined(step, {"--find-best", "--gpus", "2"});
  const std::string text = succeed(joined(find, {"--out", kept})).out;
  const Json found = Json::parse(read_file(kept));
  ASSERT_EQ(found.at("contestants").size(), 5U);
  for (const Json& contestant : found.at("contestants")) {
    const Json& best = contestant.at("best").at(0);
    const Words words = best.at("words").get<Words>();
    const Json alone =
        Json::parse(succeed(joined(joined(step, words), {"--workers", "2", "--json"})).out);
    EXPECT_EQ(alone.at("step_s"), contestant.at("own_cuts_step_s")) << contestant.at("name");
    const Json third = Json::parse(
        succeed(joined(joined(step, words), {"--workers", "2", "--step", "3", "--json"})).out);
    EXPECT_EQ(third.at("step_s"), contestant.at("own_cuts_steps_s").at(2));
    EXPECT_EQ(contestant.at("own_cuts_steps_s").size(), 4U);
    if (best.at("nano_batches") == found.at("most_nano_batches")) {
      EXPECT_EQ(alone.at("plan_hash"), best.at("plan_hash"));
    }
  }
  EXPECT_EQ(found.at("contestants").at(0).at("best").size(), 10U);
  EXPECT_THAT(text,
              AllOf(HasSubstr("Ours is best with T = "), HasSubstr("wlb at its best (T = "),
                    HasSubstr(" in steps 1 to 4 of the runs themselves"),
                    HasSubstr("    distca train model.num_attention_heads=4 "),
                    HasSubstr("Why the others lose. "), HasSubstr("best against best"),
                    HasSubstr("virtual stages, predicted only"), HasSubstr("stated or assumed")));
  const Json two_rivals =
      Json::parse(succeed(joined(find, {"--rivals", "local,wlb", "--json"})).out);
  ASSERT_EQ(two_rivals.at("contestants").size(), 3U);
  EXPECT_EQ(two_rivals.at("contestants").at(2), found.at("contestants").at(2));
  EXPECT_THAT(succeed(joined(find, {"--rivals", "none"})).out, Not(HasSubstr("wlb at its best")));
}

TEST_F(CliSimulateTest, words_behind_options_of_several_values_are_keys) {
  const Words step = {"simulate",
                      "--lengths",
                      "distca/plan/testdata/lengths_pretrain.json",
                      "--workers",
                      "4",
                      "--json",
                      "batch.nano_batch_tokens=262144",
                      "batch.max_document_tokens=65536",
                      "--slow",
                      "1=0.7",
                      "--slow",
                      "2=0.9"};
  const Words reweighted = {"servers.reweight=true", "train.deterministic=false"};
  EXPECT_LT(Json::parse(succeed(joined(step, reweighted)).out).at("step_s"),
            Json::parse(succeed(step).out).at("step_s"));
  EXPECT_THAT(
      succeed({"simulate", "--lengths", "distca/plan/testdata/lengths_pretrain.json", "--find-best",
               "--gpus", "2", "--rivals", "local", "batch.max_document_tokens=4096"})
          .out,
      HasSubstr("    distca train batch.max_document_tokens=4096 data.prefix=PREFIX "));
}

TEST_F(CliSimulateTest, a_printed_machine_is_a_file_that_says_the_same) {
  const std::string file = folder_ / "mine.json";
  write_file_atomically(file, succeed({"simulate", "--machine", "h100", "--print-machine"}).out);
  const Words step = {"simulate", "--lengths", "distca/plan/testdata/lengths_pretrain.json",
                      "--json"};
  EXPECT_EQ(succeed(joined(step, {"--machine", file})).out,
            succeed(joined(step, {"--machine", "h100"})).out);
}

TEST_F(CliSimulateTest, a_row_of_the_papers_is_played) {
  const Words table = {"simulate", "--paper", "table3", "--lengths", "distca/plan/testdata"};
  const std::string out = succeed(joined(table, {"--rows", "8B 512K pretrain 64"})).out;
  EXPECT_THAT(out, AllOf(HasSubstr("\n8B 512K pretrain 64 GPUs  1.07-1.20  "),
                         HasSubstr("released code"), HasSubstr(" of 1 rows, below in ")));
  EXPECT_THAT(out, Not(HasSubstr("256K pretrain")));
  EXPECT_THAT(succeed({"simulate", "--paper", "fig3a"}).out,
              AllOf(HasSubstr("39.7 %"), HasSubstr("points apart")));
}

}  // namespace
}  // namespace distca::testing
