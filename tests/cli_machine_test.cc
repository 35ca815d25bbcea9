// `distca profile --machine` as its users meet it, and predictions by what it has measured. How
// near these are to runs is measured on quiet cores (docs/simulator.md).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "distca/base/file.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class CliMachineTest : public TrainingTest {
 protected:
  std::string file() const { return (folder_ / "machine.json").string(); }

  Words run_of(const Words& words) const {
    return joined(
        {"data.prefix=" + prefix_.string(), "model.hidden_size=64", "model.intermediate_size=128",
         "model.num_hidden_layers=2", "model.num_attention_heads=4", "model.num_key_value_heads=2",
         "model.head_dim=16", "batch.nano_batch_tokens=1024", "batch.nano_batches=4"},
        words);
  }

  /// Measures the machine with so many workers.
  Json measured(const Words& words, const std::string& workers) const {
    succeed(
        joined({"profile", "--machine", "--workers", workers, "--seconds", "0.1", "--out", file()},
               run_of(words)));
    return Json::parse(read_file(file()));
  }

  Words simulate(const Words& words, const std::string& workers) const {
    return joined({"simulate", "--machine", file(), "--workers", workers, "--json"}, run_of(words));
  }
};

std::set<std::string> phases_of(const Json& machine) {
  std::set<std::string> names;
  for (const Json& phase : machine.at("phases")) {
    names.insert(phase.at("phase").get<std::string>() + " " + phase.at("pass").get<std::string>());
    EXPECT_GE(phase.at("tokens").size(), 2U) << phase.dump();
  }
  return names;
}

const std::set<std::string> kAlways = {"embed forward",
                                       "embed backward",
                                       "pre_attention forward",
                                       "pre_attention backward",
                                       "post_attention forward",
                                       "post_attention backward",
                                       "loss forward"};

TEST_F(CliMachineTest, a_run_is_predicted_by_what_its_machine_takes) {
  const Json machine = measured({}, "2");
  EXPECT_THAT(phases_of(machine), IsSupersetOf(kAlways));
  for (const char* number : {"linear_tflops", "attention_rate", "memory_gb_per_s", "copy_gb_per_s",
                             "inside_gb_per_s", "step_us"}) {
    const Json& of = machine.at("numbers").at(number);
    EXPECT_GT(of.at("value").get<double>(), 0) << number;
    EXPECT_THAT(of.at("source").get<std::string>(), HasSubstr("measured")) << number;
  }
  EXPECT_GT(machine.at("check").at("predicted_s").get<double>(), 0);
  EXPECT_GT(machine.at("check").at("measured_s").get<double>(), 0);
  const Json step = Json::parse(succeed(simulate({}, "2")).out);
  EXPECT_GT(step.at("step_s").get<double>(), 0);
  EXPECT_TRUE(step.at("last_check").is_number());
  // Other settings of the run have the same phases, another model has others.
  for (const char* word : {"train.overlap=none", "train.recompute=full", "plan.scheduler=local",
                           "batch.nano_batch_tokens=768", "model.num_hidden_layers=3"})
    succeed(simulate({word}, "2"));
  EXPECT_THAT(error_line(run_distca(simulate({"model.intermediate_size=192"}, "2")), 2),
              HasSubstr("its phases were measured with model.intermediate_size = 128, and the "
                        "configuration has 192: measure them for it (distca profile --machine)"));
}

TEST_F(CliMachineTest, weight_gradients_that_wait_have_times_of_their_own) {
  const Words pipeline = {"parallel.pipeline_model_parallel_size=2",
                          "parallel.outstanding_weight_gradients=2"};
  EXPECT_THAT(
      phases_of(measured(pipeline, "2")),
      IsSupersetOf({"post_attention backward", "post_attention, leaving weights backward",
                    "pre_attention, leaving weights backward", "weight_gradient backward"}));
  succeed(simulate(pipeline, "2"));
}

TEST_F(CliMachineTest, ranks_that_divide_layers_have_times_of_their_parts) {
  const Words tensor = {"parallel.tensor_model_parallel_size=2"};
  EXPECT_THAT(
      phases_of(measured(tensor, "2")),
      IsSupersetOf({"out_projection forward", "mlp_norm backward", "attention_norm forward"}));
  succeed(simulate(tensor, "2"));
  EXPECT_THAT(error_line(run_distca(simulate({}, "2")), 2),
              HasSubstr("measured with parallel.tensor_model_parallel_size = 2"));
}

}  // namespace
}  // namespace distca::testing
