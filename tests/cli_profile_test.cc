// `distca profile` writes a profile of the shape asked for. What it refuses: bad_input_runs.cc.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/batch/test_folder.h"
#include "distca/cost/attention_profile.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CliProfileTest : public FolderTest {
 protected:
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"profile",   "--attention", "--max-tokens", "200",
                                 "--seconds", "0",           "--out",        file()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::filesystem::path file() const { return folder_ / "profile.json"; }
};

TEST_F(CliProfileTest, measures_the_shape_asked_for) {
  const Outcome outcome = run_distca(
      command({"--heads", "4", "--kv-heads", "2", "--head-dim", "16", "--dtype", "fp32"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("error: median"), HasSubstr("1 call of each task"),
                                 HasSubstr(", 1 thread, fp32, distca "), HasSubstr("% of it"),
                                 HasSubstr("multiply-adds without memory")));
  const auto profile = profile_by_name(file());
  EXPECT_EQ(profile->shape, (AttentionShape{.num_heads = 4,
                                            .num_kv_heads = 2,
                                            .head_dim_qk = 16,
                                            .head_dim_v = 16,
                                            .element_bytes = 4}));
  EXPECT_THAT(profile->path, StartsWith("cpu-")) << "as training would: our own kernel";
  EXPECT_GT(profile->peak_mflops, 1000);
  EXPECT_THAT(profile->q_tokens, ElementsAre(16, 32, 64, 128, 200));
  EXPECT_EQ(profile->kv_tokens, profile->q_tokens);
  EXPECT_THAT(outcome.out, HasSubstr(profile_name(*profile)));
}

TEST_F(CliProfileTest, measures_the_kernel_asked_for) {
  const std::vector<std::string> shape{"--heads", "2", "--kv-heads", "1", "--head-dim", "16"};
  for (const auto& [kernel, dtype, path] :
       {std::tuple("aten", "fp32", "aten-cpu"), std::tuple("auto", "fp64", "aten-cpu"),
        std::tuple("reference", "fp32", "reference")}) {
    std::vector<std::string> more = shape;
    more.insert(more.end(), {"--kernel", kernel, "--dtype", dtype});
    const Outcome outcome = run_distca(command(more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(fmt::format("200 tokens with {},", path)));
    EXPECT_EQ(profile_by_name(file())->path, path);
  }
}

}  // namespace
}  // namespace distca::testing
