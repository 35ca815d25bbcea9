// `distca train` refuses bad input in one line that says what, where and what would be right, with
// exit code 2, and leaves everything as it was. And `distca profile`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>

#include "distca/base/file.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/cost/attention_profile.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CliTrainTest : public TrainingTest {
 protected:
  /// The error line with which both of two ranks with these arguments refuse to start.
  std::string refusal_of_two(const Words& rank_0, const Words& rank_1) const {
    const Words grace = {"comm.grace_s=1"};
    const auto [first, second] = run_torchrun(joined(rank_0, grace), joined(rank_1, grace));
    const std::string line = error_line(first, 2);
    EXPECT_EQ(error_line(second, 2), line);
    EXPECT_FALSE(fs::exists(run_));
    return line;
  }
};

TEST_F(CliTrainTest, the_summary_names_the_architecture_saved_and_a_run_of_no_step) {
  EXPECT_THAT(succeed(arguments({"train.steps=0", "model.sliding_window=64"})).out,
              AllOf(HasSubstr("Nothing was trained (train.steps = 0): the weights are the initial, "
                              "random ones\n  validation loss 5.5"),
                    HasSubstr("/config.json        MistralForCausalLM\n")));
  EXPECT_THAT(read_file(run_ / "config.json"), HasSubstr("MistralForCausalLM"));
  EXPECT_THAT(read_file(run_ / "config.toml"),
              AllOf(HasSubstr("\nsteps = 0\n"), ::testing::Not(HasSubstr("default"))));
}

TEST_F(CliTrainTest, a_dry_run_says_what_memory_a_run_takes_and_leaves_nothing) {
  const std::vector<std::string> before = files_below(folder_);
  const auto said = [](const Words& words) {  // in long lines
    const std::string out = succeed(joined(words, {"--workers", "2", "--dry-run"})).out;
    return std::regex_replace(out, std::regex("\n  "), " ");
  };
  EXPECT_THAT(said(arguments()),
              AllOf(StartsWith("The model has 34,976 parameters: 2 layers, "),
                    HasSubstr("\n2 workers would train on 2 x 512 = 1,024 tokens a step"),
                    HasSubstr("for the first 6 batches of " + prefix_.string()),
                    ContainsRegex("\nMiB +worker [01]\nweights +0\\.1\n"),
                    ContainsRegex("\nRank [01] reaches its peak in "),
                    HasSubstr("The tensors of the 2 ranks on this machine take ")));
  // Neither data nor peers are needed.
  const auto without_data = [&](const std::string& prefix) {
    return said(train_arguments(prefix, run_, {"servers.dedicated=1"}));
  };
  const std::string assumed = "a batch of documents of 384 tokens (batch.max_document_tokens), as ";
  EXPECT_THAT(without_data("absent"),
              AllOf(HasSubstr("\n2 workers and 1 dedicated server would train on "),
                    HasSubstr(assumed + "there is no data set absent"),
                    ContainsRegex("\nMiB +worker [01] +server 2\n"),
                    HasSubstr("\nRank 2 reaches its peak in every operation.\n")));
  EXPECT_THAT(without_data(""), HasSubstr(assumed + "data.prefix is not set"));
  const Outcome second =
      Program(arguments({"--dry-run"}), torchrun_environment(1, 2, free_port())).wait();
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_EQ(second.out, "") << "rank 0 speaks";
  EXPECT_EQ(files_below(folder_), before);
}

/// A match of `pattern` in a file, of which there must be one.
std::string found_in(const fs::path& file, const char* pattern) {
  std::smatch match;
  const std::string text = read_file(file);
  EXPECT_TRUE(std::regex_search(text, match, std::regex(pattern))) << file << " lacks " << pattern;
  return match.empty() ? "" : match[1].str();
}

class ExampleConfigTest : public CliTrainTest {
 protected:
  /// A dry run says what it takes, and either it fits this machine or that is the only fault.
  void expect_dry_run(const fs::path& file, const Words& more, const Environment& environment,
                      const std::string& ranks) {
    const Words words = {"train", "--config", file, "--dry-run",
                         "train.output_dir=" + run_.string()};
    const Outcome outcome = Program(joined(words, more), environment).wait();
    EXPECT_THAT(outcome.out,
                AllOf(StartsWith("The model has "), HasSubstr("\n" + ranks + " "),
                      HasSubstr(" would train on "), HasSubstr("Memory is predicted for ")))
        << file << outcome.err;
    if (outcome.exit_code != 0) {
      EXPECT_THAT(outcome.err, HasSubstr(" ranks would need ")) << file;
    }
    const std::string text = read_file(file);
    // The peak leaves room on a GPU of 80 GB for PyTorch, NCCL and the allocator.
    if (text.find("GPUs of 80 GB") != std::string::npos) {
      std::smatch peak;
      ASSERT_TRUE(std::regex_search(outcome.out, peak, std::regex("\npeak +([0-9.]+)"))) << file;
      EXPECT_LT(std::stod(peak[1].str()), 64.0 * 1024) << file << ": MiB on the first worker";
    }
    // A comment in the file may give the model's size, in millions of parameters.
    if (text.find("million parameters") == std::string::npos) return;
    const double millions = std::stod(found_in(file, "([0-9]+) million parameters"));
    std::smatch match;
    ASSERT_TRUE(std::regex_search(outcome.out, match, std::regex("has ([0-9,]+) parameters")));
    const std::string digits = std::regex_replace(match[1].str(), std::regex(","), "");
    EXPECT_NEAR(std::stod(digits) / 1e6, millions, 0.5) << file;
  }
};

TEST_F(ExampleConfigTest, each_is_a_run_that_could_start) {
  size_t checked = 0;
  for (const auto& entry : fs::directory_iterator("configs")) {
    const fs::path& file = entry.path();
    if (file.extension() != ".toml" || file.stem().string().ends_with("_8_nodes") ||
        file.stem() == "llama_32k" || file.stem() == "from_hugging_face")
      continue;
    const std::string text = read_file(file);
    const std::string workers =
        text.find("--workers ") == std::string::npos ? "2" : found_in(file, "--workers ([0-9]+)");
    expect_dry_run(file, {"--workers", workers}, {}, workers + " workers");
    ++checked;
  }
  EXPECT_GE(checked, 4u);
}

class SlurmConfigTest : public ExampleConfigTest,
                        public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(nodes, SlurmConfigTest, ::testing::Values("slurm_8_nodes", "gpu_8_nodes"));

TEST_P(SlurmConfigTest, starts_as_its_batch_script_says) {
  const fs::path script = fmt::format("configs/{}.sbatch", GetParam());
  EXPECT_EQ(std::system(("bash -n " + script.string()).c_str()), 0);
  const std::string nodes = found_in(script, "#SBATCH --nodes=([0-9]+)");
  const std::string tasks = found_in(script, "#SBATCH --ntasks-per-node=([0-9]+)");
  const std::string ranks = std::to_string(std::stoi(nodes) * std::stoi(tasks));
  const fs::path config = found_in(script, "distca train --config ([^ ]+) --resume if-any");
  EXPECT_EQ(found_in(script, "#SBATCH --cpus-per-task=([0-9]+)"),
            found_in(config, "threads_per_rank = ([0-9]+)"));
  EXPECT_EQ(tasks, found_in(config, "ranks_per_node = ([0-9]+)"));
  if (config.stem() == "gpu_8_nodes") {
    EXPECT_EQ(found_in(script, "#SBATCH --gpus-per-node=([0-9]+)"), tasks);
  }
  EXPECT_EQ(found_in(script, "-e ([^ ]+)/model.safetensors"),
            found_in(config, "output_dir = \"([^\"]+)\""));
  expect_dry_run(config, {},
                 {{"SLURM_PROCID", "0"},
                  {"SLURM_LOCALID", "0"},
                  {"SLURM_NODEID", "0"},
                  {"SLURM_STEP_NUM_TASKS", ranks},
                  {"SLURM_STEP_TASKS_PER_NODE", fmt::format("{}(x{})", tasks, nodes)},
                  {"SLURM_STEP_NODELIST", "node[1-8]"},
                  {"SLURM_JOB_ID", "4711"}},
                 ranks + " workers");
}

TEST_F(ExampleConfigTest, the_one_that_begins_with_weights_starts_with_a_llama_of_a_billion) {
  const fs::path file = "configs/llama_32k.toml";
  const fs::path model = folder_ / found_in(file, "from = \"models/([^\"]+)\"");
  fs::create_directories(model);
  // Llama 3.2's.
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"vocab_size", 128256},
                       {"hidden_size", 2048},
                       {"intermediate_size", 8192},
                       {"num_hidden_layers", 16},
                       {"num_attention_heads", 32},
                       {"num_key_value_heads", 8},
                       {"head_dim", 64},
                       {"max_position_embeddings", 131072},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 500000.0},
                       {"rope_scaling", scaling},
                       {"tie_word_embeddings", true},
                       {"torch_dtype", "bfloat16"}};
  std::ofstream(model / "config.json") << config.dump();
  expect_dry_run(file, {"--workers", "8", "model.from=" + model.string()}, {}, "8 workers");
}

TEST_F(ExampleConfigTest, the_one_of_hugging_face_starts_with_a_small_llama) {
  const fs::path file = "configs/from_hugging_face.toml";
  const fs::path model = folder_ / found_in(file, "from = \"models/([^\"]+)\"");
  fs::create_directories(model);
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"hidden_size", 576},
                       {"intermediate_size", 1536},
                       {"is_llama_config", true},
                       {"max_position_embeddings", 8192},
                       {"model_type", "llama"},
                       {"num_attention_heads", 9},
                       {"num_hidden_layers", 30},
                       {"num_key_value_heads", 3},
                       {"rms_norm_eps", 1e-5},
                       {"rope_interleaved", false},
                       {"rope_scaling", nullptr},
                       {"rope_theta", 100000},
                       {"tie_word_embeddings", true},
                       {"vocab_size", 49152}};
  std::ofstream(model / "config.json") << config.dump();
  const std::string workers = found_in(file, "--workers ([0-9]+)");
  expect_dry_run(file, {"--workers", workers, "model.from=" + model.string()}, {},
                 workers + " workers");
}

TEST_F(CliTrainTest, a_port_in_use_is_named) {
  const TakenPort taken;
  const std::vector<std::string> before = files_below(folder_);
  EXPECT_THAT(refusal(arguments({"--workers", "2", "--master-port", taken.port})),
              AllOf(HasSubstr("port " + taken.port), HasSubstr("in use")));
  EXPECT_EQ(files_below(folder_), before);
  EXPECT_FALSE(fs::exists(run_));
}

TEST_F(CliTrainTest, a_folder_that_holds_what_no_run_made_is_left_alone) {
  for (const char* name : {"model.safetensors", "config.json", "config.toml", "metrics.jsonl"}) {
    const fs::path folder = folder_ / name;
    write_file_atomically(folder / name, "{}\n");
    for (const char* workers : {"1", "2"}) {
      for (const char* overwrite : {"train.overwrite=false", "train.overwrite=true"}) {
        EXPECT_THAT(
            refusal(arguments({"--workers", workers, overwrite}, name)),
            AllOf(HasSubstr((folder / name).string()), HasSubstr("name another train.output_dir")));
      }
    }
    EXPECT_EQ(read_files(folder), (std::map<std::string, std::string>{{name, "{}\n"}}));
  }
}

TEST_F(CliTrainTest, an_instruction_set_that_is_not_here_is_refused_before_anything_is_written) {
  const auto with = [&](const char* isa, const Words& more) {
    return Program(arguments(more), {{"DISTCA_KERNEL_ISA", isa}}).wait();
  };
  EXPECT_THAT(error_line(with("avx1024", {"--workers", "2"}), 2),
              AllOf(HasSubstr("DISTCA_KERNEL_ISA"), HasSubstr("avx1024"), HasSubstr("portable")));
  EXPECT_FALSE(fs::exists(run_));
  EXPECT_THAT(with("portable", {}).out, HasSubstr("attention kernel cpu-portable"));
}

TEST_F(CliTrainTest, ranks_with_different_profiles_refuse_to_start) {
  AttentionProfile profile = h200_profile();
  const auto with = [&](const char* file) {
    write_file_atomically(folder_ / file, profile_to_json(profile));
    return arguments({"plan.profile=" + (folder_ / file).string()});
  };
  const Words first = with("a.json");
  profile.forward_ns.back() += 1;
  EXPECT_THAT(refusal_of_two(first, with("b.json")),
              AllOf(HasSubstr("rank 1 has plan.profile = "), HasSubstr(profile_name(profile)),
                    HasSubstr(", rank 0 has ")));
}

TEST_F(CliTrainTest, ranks_with_other_data_refuse_to_start) {
  // Other tokens of the same lengths; documents that are each one token longer.
  const IndexedDataset data(prefix_);
  const auto copy = [&](const char* name, int32_t change, bool longer) {
    IndexedDatasetWriter writer(folder_ / name, TokenType::kUint8);
    for (int64_t document = 0; document < data.num_documents(); ++document) {
      std::vector<int32_t> tokens(static_cast<size_t>(data.document_length(document)));
      EXPECT_FALSE(data.read(document, 0, tokens));
      for (int32_t& token : tokens) token += change;
      if (longer) tokens.push_back(10);
      writer.add_document(tokens);
    }
    writer.finish();
    return folder_ / name;
  };
  const auto on = [&](const fs::path& prefix) {
    return train_arguments(prefix, run_, {"comm.grace_s=1", "train.steps=1"});
  };
  for (const fs::path& other : {copy("tokens", 1, false), copy("longer", 0, true)}) {
    EXPECT_THAT(refusal_of_two(on(prefix_), on(other)),
                AllOf(HasSubstr("rank 1 has data.prefix = " + other.string() + " (40"),
                      HasSubstr("rank 0 has " + prefix_.string() + " (40 documents, ")));
  }
  // Another path to the same data is fine.
  for (const Outcome& outcome : run_torchrun(on(prefix_), on(copy("same", 0, false))))
    EXPECT_EQ(outcome.exit_code, 0);
}

TEST_F(CliTrainTest, data_without_a_next_token_is_refused) {
  IndexedDatasetWriter writer(folder_ / "one", TokenType::kUint8);
  writer.add_document(std::vector<int32_t>{97});
  writer.finish();
  EXPECT_THAT(refusal(train_arguments(folder_ / "one", run_, {})),
              HasSubstr("no next token to learn"));
}

TEST_F(CliTrainTest, ranks_with_different_kernels_refuse_to_start) {
  EXPECT_THAT(refusal_of_two(arguments({"attention.kernel=reference"}),
                             arguments({"attention.kernel=aten"})),
              HasSubstr("rank 1 has attention.kernel = aten-cpu, rank 0 has reference"));
}

TEST_F(CliTrainTest, ranks_with_different_schedules_or_servers_refuse_to_start) {
  EXPECT_THAT(
      refusal_of_two(arguments({"train.overlap=ping-pong"}), arguments({"train.overlap=within"})),
      HasSubstr("rank 1 has train.overlap = within, rank 0 has ping-pong"));
  EXPECT_THAT(
      refusal_of_two(arguments({"servers.dedicated=0"}), arguments({"servers.dedicated=1"})),
      HasSubstr("rank 1 has servers.dedicated = 1, rank 0 has 0"));
}

TEST_F(CliTrainTest, a_printed_configuration_reads_back_as_the_same) {
  const std::string first = succeed(arguments({"--print-config", "optimizer.lr=3e-4"})).out;
  write_file_atomically(folder_ / "printed.toml", first);
  EXPECT_EQ(run_distca({"train", "--config", folder_ / "printed.toml", "--print-config"}).out,
            first);
  EXPECT_THAT(first, HasSubstr("\nlr = 0.0003  # "));
  EXPECT_FALSE(fs::exists(run_));
}

/// `distca profile` writes a profile of the shape asked for. What it refuses: bad_input_runs.cc.
class CliProfileTest : public FolderTest {
 protected:
  std::filesystem::path file() const { return folder_ / "profile.json"; }
  /// Runs `distca profile`, which must succeed, and returns what it printed.
  std::string printed(const Words& more) const {
    return succeed(joined({"profile", "--attention", "--max-tokens", "200", "--seconds", "0",
                           "--out", file()},
                          more))
        .out;
  }
};

TEST_F(CliProfileTest, measures_the_shape_asked_for) {
  const std::string out =
      printed({"--heads", "4", "--kv-heads", "2", "--head-dim", "16", "--dtype", "fp32"});
  EXPECT_THAT(out, AllOf(HasSubstr("error: median"), HasSubstr("1 call of each task"),
                         HasSubstr(", 1 thread, float32, distca "), HasSubstr("% of it"),
                         HasSubstr("multiply-adds without memory")));
  const auto profile = profile_by_name(file());
  EXPECT_EQ(profile->shape, (AttentionShape{.num_heads = 4,
                                            .num_kv_heads = 2,
                                            .head_dim_qk = 16,
                                            .head_dim_v = 16,
                                            .type = ScalarType::kFloat32}));
  EXPECT_THAT(profile->path, StartsWith("cpu-")) << "as training would: our own kernel";
  EXPECT_GT(profile->peak_mflops, 1000);
  EXPECT_THAT(profile->q_tokens, ElementsAre(16, 32, 64, 128, 200));
  EXPECT_EQ(profile->kv_tokens, profile->q_tokens);
  EXPECT_THAT(out, HasSubstr(profile_name(*profile)));
}

TEST_F(CliProfileTest, measures_the_kernel_asked_for) {
  for (const auto& [kernel, dtype, path] :
       {std::tuple("aten", "fp32", "aten-cpu"), std::tuple("auto", "fp64", "aten-cpu"),
        std::tuple("reference", "fp32", "reference")}) {
    EXPECT_THAT(printed({"--heads", "2", "--kv-heads", "1", "--head-dim", "16", "--kernel", kernel,
                         "--dtype", dtype}),
                HasSubstr(fmt::format("200 tokens with {},", path)));
    EXPECT_EQ(profile_by_name(file())->path, path);
  }
}

}  // namespace
}  // namespace distca::testing
