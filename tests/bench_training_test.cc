// bench/training from end to end at its smallest: every arm plays, and PyTorch DDP's first step has
// our loss and gradient norm.

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>

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
  const Outcome outcome = run({"--only", "long-tailed", "--lengths", folder_});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::map<std::string, std::vector<Json>> lines;  // by kind
  std::istringstream out(outcome.out);
  for (std::string line; std::getline(out, line);) {
    const Json json = parse_json(line, "bench/training");
    lines[json["line"].get<std::string>()].push_back(json);
  }
  EXPECT_TRUE(outcome.out.starts_with('{')) << "a line is an object";
  EXPECT_THAT(lines["header"], SizeIs(1));
  ASSERT_THAT(lines["rival_check"], SizeIs(1));
  const Json& check = lines["rival_check"][0];
  EXPECT_NEAR(check["loss"].get<double>(), std::log(256), 0.1) << "of nothing learnt yet";
  EXPECT_NEAR(check["rival_loss"], check["loss"], check["bound"].get<double>() * 6);
  EXPECT_THAT(lines["source"], SizeIs(1));
  ASSERT_THAT(lines["round"], SizeIs(1));
  for (const Json& arm : lines["round"][0]["arms"]) {
    EXPECT_GT(arm["seconds"], 0);
    EXPECT_GE(arm["idle_share"], 0);
    EXPECT_LT(arm["idle_share"], 1);
  }
  std::vector<std::string> names;
  for (const Json& arm : lines["arm"]) names.push_back(arm["arm"]);
  EXPECT_THAT(names, ElementsAre("balanced (ours)", "ours again", "local, equal documents", "local",
                                 "wlb", "per-document-cp", "greedy", "PyTorch DDP"));
  EXPECT_THAT(lines["round"][0]["arms"], SizeIs(names.size()));
}

TEST_F(TrainingProgram, without_its_data_ends_with_2_and_says_what_makes_them) {
  const Outcome outcome = run({"--only", "real", "--data", folder_ / "none"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("none.idx does not exist: `make demo`"));
}

}  // namespace
}  // namespace distca::bench
