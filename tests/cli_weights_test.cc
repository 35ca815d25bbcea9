// `distca export` in other number types and several files, `distca init`, and `distca train` that
// goes on from what they write. With transformers: python/tests/test_hugging_face_folders.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "distca/base/file.h"
#include "distca/checkpoint/safetensors.h"
#include "distca/kernels/bfloat16.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

/// The fp32 weights in a folder's model.safetensors, by the names of the tensors.
std::map<std::string, std::vector<float>> weights_of(const fs::path& folder) {
  const SafetensorsFile file(folder / "model.safetensors");
  std::map<std::string, std::vector<float>> weights;
  for (const SafetensorsHeader::Entry& entry : file.tensors()) {
    EXPECT_EQ(entry.tensor.type, ScalarType::kFloat32) << entry.tensor.name;
    std::vector<float>& values = weights[entry.tensor.name];
    values.resize(static_cast<size_t>(entry.tensor.numel()));
    std::memcpy(values.data(), file.bytes(entry).data(), file.bytes(entry).size());
  }
  return weights;
}

class CliWeightsTest : public TrainingTest {
 protected:
  /// The weights that a run from this folder has before its first step.
  std::map<std::string, std::vector<float>> begun_from(const fs::path& folder,
                                                       const std::string& words) const {
    const std::string name = "from_" + folder.filename().string();
    EXPECT_THAT(succeed(arguments({"model.from=" + folder.string(), "train.steps=0"}, name)).out,
                HasSubstr("starting from the weights of " + folder.string() + ": " + words + "\n"));
    return weights_of(folder_ / name);
  }
};

TEST_F(CliWeightsTest, a_checkpoint_rounded_into_shards_is_a_model_to_go_on_from) {
  succeed(arguments({"checkpoint.every_steps=6"}));
  const fs::path out = folder_ / "shards";
  const Words words = {"export",  run_,       "--out",          out,
                       "--dtype", "bfloat16", "--max-shard-gb", "0.00003"};
  EXPECT_THAT(
      succeed(words).out,
      HasSubstr("\n  " + (out / "model.safetensors.index.json").string() +
                "  weights in 3 files, Hugging Face names (34,976 parameters, bfloat16)\n"));
  EXPECT_THAT(
      files_below(out),
      ElementsAre("config.json", "generation_config.json", "model-00001-of-00003.safetensors",
                  "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                  "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"));
  EXPECT_EQ(read_json(out / "model.safetensors.index.json").at("metadata").at("total_size"),
            34976 * 2);
  Json config = read_json(run_ / "config.json");
  config["torch_dtype"] = "bfloat16";
  EXPECT_EQ(read_json(out / "config.json"), config);

  std::map<std::string, std::vector<float>> want = weights_of(run_);
  for (auto& [name, values] : want) {
    for (float& value : values) value = kernels::to_float(kernels::to_bfloat16(value));
  }
  EXPECT_TRUE(begun_from(out, "21 tensors in 3 files, bfloat16") == want);
  // An export as one file again removes the old index, which a reader would mix with the new file.
  EXPECT_THAT(refusal({"export", run_, "--out", out}), HasSubstr("config.json is there already"));
  succeed({"export", run_, "--out", out, "--overwrite"});
  EXPECT_TRUE(read_file(out / "model.safetensors") == read_file(run_ / "model.safetensors"));
  EXPECT_THAT(files_below(out), Not(IsSupersetOf({"model.safetensors.index.json"})));
}

TEST_F(CliWeightsTest, a_run_whose_newest_weights_are_a_checkpoints_is_no_model_to_start_from) {
  succeed(arguments({"checkpoint.every_steps=6"}));
  const std::string older = read_file(run_ / "model.safetensors");
  succeed(arguments({"checkpoint.every_steps=6", "train.steps=12", "--resume"}));
  write_file_atomically(run_ / "model.safetensors", older);  // the run seems not to be at its end
  const std::string line = "model.from = " + run_.string() +
                           ": the newest weights of this run are those of " +
                           (run_ / "checkpoints" / "step_000012").string() +
                           ", and its model.safetensors is older: distca export " + run_.string();
  EXPECT_THAT(refusal(arguments({"model.from=" + run_.string()}, "from")), HasSubstr(line));
  EXPECT_FALSE(fs::exists(folder_ / "from"));
  EXPECT_THAT(refusal({"verify", "model.from=" + run_.string(), "data.prefix=" + prefix_.string(),
                       "--workers", "2"}),
              HasSubstr(line));
  for (const fs::path& source : {run_, run_ / "checkpoints", run_ / "checkpoints/step_000012"}) {
    EXPECT_THAT(refusal({"export", source, "--out", run_, "--overwrite"}),
                HasSubstr("the weights of the exported run's end are there: name another folder"));
  }
  succeed({"export", run_, "--out", folder_ / "model"});
  EXPECT_FALSE(read_file(folder_ / "model" / "model.safetensors") == older);
}

TEST_F(CliWeightsTest, an_export_takes_the_tokenizer_of_the_model_before_with_it) {
  succeed(arguments({"checkpoint.every_steps=6"}));
  const fs::path out = folder_ / "out";
  write_file_atomically(out / "merges.txt", "by hand");
  succeed({"export", run_, "--out", out});
  EXPECT_TRUE(fs::exists(out / "merges.txt")) << "there was no model";
  fs::remove(prefix_.string() + ".bin");
  EXPECT_THAT(
      succeed({"export", run_, "--out", out, "--overwrite"}).out,
      HasSubstr("\n  renamed to *.older, of the model before: generation_config.json, merges.txt, "
                "tokenizer.json, tokenizer_config.json\n"));
  EXPECT_EQ(read_file(out / "merges.txt.older"), "by hand");
  EXPECT_FALSE(fs::exists(out / "tokenizer.json"));
}

TEST_F(CliWeightsTest, a_run_without_checkpoints_is_exported_where_its_weights_change) {
  succeed(arguments());
  EXPECT_THAT(refusal({"export", run_, "--out", folder_ / "same"}),
              HasSubstr("its weights are in " + (run_ / "model.safetensors").string() +
                        " already; "
                        "--dtype and --max-shard-gb write them anew"));
  const auto before = read_files(run_);
  EXPECT_THAT(refusal({"export", run_, "--out", run_, "--dtype", "float16", "--overwrite"}),
              HasSubstr("the weights of the exported run's end are there: name another folder"));
  EXPECT_EQ(read_files(run_), before) << "they are the only ones";
  const fs::path half = folder_ / "half";
  EXPECT_THAT(succeed({"export", run_, "--out", half, "--dtype", "float16"}).out,
              HasSubstr("  the tokenizer of " + run_.string() + "\n"));
  EXPECT_THAT(files_below(half),
              ElementsAre("config.json", "generation_config.json", "model.safetensors",
                          "tokenizer.json", "tokenizer_config.json"));
  EXPECT_EQ(read_safetensors_metadata(half / "model.safetensors").at("steps"), "6");
  const auto got = begun_from(half, "21 tensors in 1 file, float16"), want = weights_of(run_);
  for (const auto& [name, values] : want) {
    ASSERT_EQ(got.at(name).size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      // Half of the last of 11 bits, or of the smallest number.
      ASSERT_NEAR(got.at(name)[i], values[i], std::max(std::abs(values[i]) * 0x1p-11f, 0x1p-25f));
    }
  }
}

TEST_F(CliWeightsTest, random_weights_are_those_with_which_a_run_begins) {
  const Training scratch = train("run", {"train.seed=7"});
  succeed(arguments({"train.seed=7", "train.steps=0"}, "begun"));
  const fs::path fresh = folder_ / "fresh";
  EXPECT_THAT(succeed({"init", "--hf-config", run_, "--seed", "7", "--out", fresh}).out,
              HasSubstr("random weights from the seed 7, of the shape of " +
                        (run_ / "config.json").string() + "\n"));
  EXPECT_TRUE(weights_of(fresh) == weights_of(folder_ / "begun"));
  EXPECT_THAT(files_below(fresh),
              ElementsAre("config.json", "generation_config.json", "model.safetensors",
                          "tokenizer.json", "tokenizer_config.json"));
  EXPECT_EQ(read_json(fresh / "config.json"), read_json(run_ / "config.json"));
  const Training from = train("from", {"train.seed=7", "model.from=" + fresh.string()});
  EXPECT_EQ(from.losses, scratch.losses);
  EXPECT_TRUE(weights_of(folder_ / "from") == weights_of(run_));
  // A file alone has no tokenizer, and another seed other weights.
  succeed({"init", "--hf-config", run_ / "config.json", "--out", folder_ / "other"});
  EXPECT_THAT(files_below(folder_ / "other"), ElementsAre("config.json", "model.safetensors"));
  EXPECT_FALSE(weights_of(folder_ / "other") == weights_of(fresh));
}

}  // namespace
}  // namespace distca::testing
