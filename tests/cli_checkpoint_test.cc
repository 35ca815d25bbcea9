// `distca checkpoint` and `distca export` on what `distca train` has written. What they refuse:
// bad_input_checkpoints.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/file.h"
#include "distca/checkpoint/safetensors.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class CliCheckpointTest : public TrainingTest {
 protected:
  /// A run of 6 steps with checkpoints of steps 4 and 6.
  void train_run(const Words& more = {}) const {
    succeed(arguments(joined({"checkpoint.every_steps=4", "checkpoint.async=false"}, more)));
  }
  fs::path checkpoint(int step) const {
    return run_ / "checkpoints" / fmt::format("step_{:06}", step);
  }
  Outcome export_to(const fs::path& out, const fs::path& source) const {
    return succeed({"export", source, "--out", out});
  }
  static void expect_same_files(const fs::path& exported, const fs::path& run) {
    for (const char* file : {"model.safetensors", "config.json", "generation_config.json",
                             "tokenizer.json", "tokenizer_config.json"})
      EXPECT_TRUE(read_file(exported / file) == read_file(run / file)) << file;
    EXPECT_THAT(files_below(exported), SizeIs(5));
  }
  /// Changes one bit of a file.
  static void flip(const fs::path& file, size_t place) {
    std::string bytes = read_file(file);
    bytes.at(place) ^= 1;
    write_file_atomically(file, bytes);
  }
};

TEST_F(CliCheckpointTest, an_export_has_the_bytes_of_what_the_end_of_the_run_wrote) {
  train_run({"--workers", "2"});
  const fs::path out = folder_ / "new" / "exported";
  EXPECT_THAT(
      export_to(out, run_).out,
      AllOf(HasSubstr(checkpoint(6).string() + ": the weights after step 6\n"),
            HasSubstr((out / "model.safetensors").string() + "  weights, Hugging Face names ("),
            HasSubstr((out / "config.json").string())));
  expect_same_files(out, run_);
  // An older one: what a run that goes on from it and has no more steps writes.
  export_to(folder_ / "older", checkpoint(4));
  succeed(arguments({"--resume=" + checkpoint(4).string(), "train.steps=4"}, "ends"));
  expect_same_files(folder_ / "older", folder_ / "ends");
}

TEST_F(CliCheckpointTest, a_trace_of_a_run_that_goes_on_counts_its_steps_from_there) {
  train_run();
  const fs::path trace = folder_ / "trace.json";
  const Words again = {"--resume", "--trace", trace.string()};
  EXPECT_THAT(succeed(arguments(joined(again, {"train.steps=10"}))).out,
              HasSubstr(trace.string() + "  steps 8 to 10: distca trace "));
  EXPECT_THAT(read_file(trace), AllOf(HasSubstr("\"step 8\""), HasSubstr("\"step 10\"")));
  fs::remove(trace);
  EXPECT_THAT(succeed(arguments(joined(again, {"train.steps=9"}))).out,
              AllOf(HasSubstr("\nno " + trace.string() + ": fewer steps are left than"),
                    ::testing::Not(HasSubstr("distca trace"))));
  EXPECT_FALSE(fs::exists(trace));
}

TEST_F(CliCheckpointTest, an_export_of_fp64_and_of_an_interrupted_run_stays_exact) {
  train_run({"model.dtype=float64"});
  fs::rename(run_ / "model.safetensors", folder_ / "wanted");
  fs::remove(run_ / "config.json");
  export_to(folder_ / "exported", run_);
  EXPECT_TRUE(read_file(folder_ / "exported" / "model.safetensors") ==
              read_file(folder_ / "wanted"));
  EXPECT_EQ(SafetensorsFile(folder_ / "wanted").tensors().front().tensor.type,
            ScalarType::kFloat64);
}

TEST_F(CliCheckpointTest, an_export_without_the_data_says_that_it_has_no_tokenizer) {
  train_run();
  fs::rename(folder_ / "data", folder_ / "moved");
  EXPECT_THAT(export_to(folder_ / "exported", run_).out,
              HasSubstr("\n  no tokenizer: " + prefix_.string() + ".bin: no such file"));
  EXPECT_THAT(files_below(folder_ / "exported"), SizeIs(2));
  succeed({"data", "prepare", "--text", folder_ / "text" / "00.py", "--out", prefix_});
  EXPECT_THAT(export_to(folder_ / "other", run_).out,
              HasSubstr(" is not the data of the run now\n"));
}

TEST_F(CliCheckpointTest, older_exports_are_replaced_only_if_asked_and_only_by_whole_files) {
  train_run();
  const fs::path out = folder_ / "exported";
  write_file_atomically(out / "model.safetensors", "older");
  const Words words = {"export", run_, "--out", out};
  EXPECT_THAT(refusal(words), HasSubstr("model.safetensors is there already"));
  const fs::path rank_0 = checkpoint(6) / "rank_0.safetensors";
  flip(rank_0, SafetensorsFile(rank_0).at("model.embed_tokens.weight").place.begin);
  for (const fs::path& folder : {out, folder_ / "a" / "b"})
    EXPECT_THAT(refusal({"export", run_, "--out", folder, "--overwrite"}),
                AllOf(HasSubstr(rank_0.string()), HasSubstr("is damaged")));
  EXPECT_EQ(read_files(out), (std::map<std::string, std::string>{{"model.safetensors", "older"}}));
  EXPECT_FALSE(fs::exists(folder_ / "a")) << "folders of a failed export stay";
  succeed({"export", checkpoint(4), "--out", out, "--overwrite"});
  EXPECT_EQ(read_safetensors_metadata(out / "model.safetensors").at("steps"), "4");
}

TEST_F(CliCheckpointTest, show_says_what_a_run_and_a_checkpoint_hold) {
  train_run({"--workers", "2"});
  const std::string text = succeed({"checkpoint", "show", run_, "--tensors"}).out;
  EXPECT_THAT(
      text,
      AllOf(HasSubstr(checkpoint(6).string() + "\n"),
            HasSubstr("step         6 of 6; the optimizer made 6 updates\n"),
            ContainsRegex("run          [0-9a-f]{16}\n"), HasSubstr(" in 2 files and the index\n"),
            HasSubstr("  number of workers: 2\n"), HasSubstr("data         40 documents, ")));
  EXPECT_THAT(
      text, AllOf(ContainsRegex("model.norm.weight +\\[32\\] +float32 +rank_1.safetensors \\(3\\)"),
                  ContainsRegex("lm_head.weight +\\[256, 32\\] +float32 +"),
                  ContainsRegex(checkpoint(4).string() + " +4 +[0-9,]+ +20")));
  const std::string one = succeed({"checkpoint", "show", checkpoint(4)}).out;
  EXPECT_THAT(one, AllOf(HasSubstr("step         4 of 6"), Not(HasSubstr(checkpoint(6).string())),
                         Not(HasSubstr("model.norm.weight"))));
}

TEST_F(CliCheckpointTest, show_gives_machines_the_same_as_json) {
  train_run();
  const Json json = Json::parse(succeed({"checkpoint", "show", run_, "--json", "--tensors"}).out);
  EXPECT_EQ(json.at("step"), 6);
  EXPECT_EQ(json.at("updates"), 6);
  EXPECT_EQ(json.at("folder"), checkpoint(6).string());
  EXPECT_EQ(json.at("config").at("train.steps"), "6");
  EXPECT_EQ(json.at("machine").at("number of workers"), "1");
  EXPECT_EQ(json.at("checkpoints").size(), 2u);
  EXPECT_EQ(json.at("checkpoints")[0].at("step"), 4);
  EXPECT_TRUE(json.at("set_aside").empty());
  int64_t on_disk = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint(6)))
    on_disk += static_cast<int64_t>(entry.file_size());
  EXPECT_EQ(json.at("bytes"), on_disk);
  const SafetensorsFile weights(run_ / "model.safetensors");
  ASSERT_EQ(json.at("tensors").size(), weights.tensors().size());
  int64_t parameters = 0;
  for (size_t i = 0; i < weights.tensors().size(); ++i) {
    const StoredTensor& tensor = weights.tensors()[i].tensor;
    parameters += tensor.numel();
    EXPECT_EQ(json.at("tensors")[i].at("name"), tensor.name);
    EXPECT_EQ(json.at("tensors")[i].at("shape"), Json(tensor.shape));
    EXPECT_EQ(json.at("tensors")[i].at("pieces_by_file"),
              Json(std::map<std::string, int>{{"rank_0.safetensors", 3}}));
  }
  EXPECT_EQ(json.at("num_parameters"), parameters);
  EXPECT_FALSE(Json::parse(succeed({"checkpoint", "show", checkpoint(4), "--json"}).out)
                   .contains("checkpoints"));
}

TEST_F(CliCheckpointTest, check_names_what_is_damaged_and_goes_on_to_the_others) {
  train_run({"--workers", "2"});
  const auto whole = [&](int step) {
    return checkpoint(step).string() + ": whole \\([0-9]+ tensors, [0-9]+ pieces in 2 files, ";
  };
  const Words words = {"checkpoint", "check", run_};
  EXPECT_THAT(succeed(words).out, ContainsRegex("^" + whole(4) + ".*\n" + whole(6)));
  EXPECT_EQ(succeed({"checkpoint", "check", run_ / "checkpoints"}).out, succeed(words).out);
  const fs::path file = checkpoint(4) / "rank_1.safetensors";
  flip(file, fs::file_size(file) - 1);
  const Outcome damaged = run_distca(words);
  EXPECT_THAT(error_line(damaged, 2),
              AllOf(HasSubstr(file.string() + ": "), HasSubstr(" is damaged: its bytes have")));
  EXPECT_THAT(damaged.out, ContainsRegex("^" + checkpoint(4).string() + ": damaged\n" + whole(6)));
  EXPECT_EQ(run_distca({"checkpoint", "check", checkpoint(6)}).exit_code, 0);
}

}  // namespace
}  // namespace distca::testing
