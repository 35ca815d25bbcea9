// bench/training from end to end at its smallest: every arm plays, and PyTorch DDP's first step has
// our loss and gradient norm.

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "distca/base/file.h"
#include "distca/base/json.h"
#include "tests/run_command.h"

namespace distca::bench {
namespace {

using ::distca::testing::Outcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class TrainingProgram : public ::testing::Test {
 protected:
  TrainingProgram()
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("distca_training_{}", getpid())) {
    write_file_atomically(folder_ / "lengths_pretrain.json", "[100, 9000, 5000, 70000, 30000]");
  }
  ~TrainingProgram() override { std::filesystem::remove_all(folder_); }

  /// bench/training on a small batch; DISTCA_PROGRAM is its path.
  Outcome run(std::vector<std::string> more) {
    more.insert(more.end(), {"--nano-batch-tokens", "512", "--rounds", "1"});
    return testing::run_distca(more);
  }
  std::filesystem::path folder_;
};

TEST_F(TrainingProgram, measures_every_arm_and_checks_that_ddp_computes_the_same) {
  const Outcome outcome = run({"--only", "long-tailed", "--lengths", folder_, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "bench/training");
  const Json& check = report["rival_check"];
  EXPECT_NEAR(check["loss"].get<double>(), std::log(256), 0.1) << "of nothing learnt yet";
  EXPECT_NEAR(check["rival_loss"], check["loss"], check["bound"].get<double>() * 6);
  ASSERT_THAT(report["sources"], SizeIs(1));
  std::vector<std::string> names;
  for (const Json& arm : report["sources"][0]["arms"]) {
    names.push_back(arm["name"]);
    ASSERT_THAT(arm["rounds"], SizeIs(1));
    EXPECT_GT(arm["rounds"][0]["seconds"], 0);
    EXPECT_GE(arm["rounds"][0]["idle_share"], 0);
    EXPECT_LT(arm["rounds"][0]["idle_share"], 1);
  }
  EXPECT_THAT(names, ElementsAre("balanced (ours)", "ours again", "local, equal documents", "local",
                                 "wlb", "per-document-cp", "greedy", "PyTorch DDP"));
  EXPECT_EQ(report["sources"][0]["idle_verdict"], "not decidable here") << "from one round";
}

TEST_F(TrainingProgram, without_its_data_ends_with_2_and_says_what_makes_them) {
  const Outcome outcome = run({"--only", "real", "--data", folder_ / "none", "--rivals", "local"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("none.idx does not exist: `make demo`"));
}

}  // namespace
}  // namespace distca::bench
