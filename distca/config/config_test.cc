#include "distca/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "distca/base/error.h"
#include "distca/base/file.h"

namespace distca {
namespace {

std::string message_of(const std::vector<std::string>& overrides) {
  try {
    load_config("", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "accepted";
}

TEST(config, every_key_has_a_reason_and_a_unique_name) {
  Config config;
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys(config)) {
    EXPECT_FALSE(key.reason.empty()) << key.name;
    EXPECT_EQ(std::count(names.begin(), names.end(), key.name), 0) << key.name;
    names.push_back(key.name);
  }
}

TEST(config, printed_config_reads_back_as_the_same) {
  const Config config = load_config(
      "", {"batch.seed=7", "optimizer.lr=2", "model.dtype=bfloat16",
           "model.tie_word_embeddings=true", "train.output_dir=runs/with space and \"quotes\" \\"});
  const auto path =
      std::filesystem::path(::testing::TempDir()) / fmt::format("distca_config_{}.toml", getpid());
  write_file_atomically(path, print_config(config));
  EXPECT_EQ(print_config(load_config(path, {})), print_config(config));
  write_file_atomically(path, recorded_config(config));
  EXPECT_EQ(print_config(load_config(path, {})), print_config(config));
  std::filesystem::remove(path);
}

TEST(config, overrides_follow_the_file) {
  const auto path = std::filesystem::path(::testing::TempDir()) /
                    fmt::format("distca_override_{}.toml", getpid());
  write_file_atomically(path, "[batch]\nseed = 3\nnano_batches = 5\n");
  const Config config = load_config(path, {"batch.seed=4"});
  EXPECT_EQ(config.batch.seed, 4u);
  EXPECT_EQ(config.batch.nano_batches, 5);
  EXPECT_EQ(config.batch.max_document_tokens, config.batch.nano_batch_tokens);
  std::filesystem::remove(path);
}

TEST(config, an_unknown_key_is_refused_with_the_nearest_known_one) {
  EXPECT_THAT(message_of({"batch.sed=3"}), ::testing::HasSubstr("did you mean batch.seed?"));
  EXPECT_THAT(message_of({"nonsense=3"}),
              ::testing::EndsWith("unknown key nonsense (see distca train --print-config)"));
  EXPECT_THAT(message_of({"optimiser.lr=3"}), ::testing::HasSubstr("did you mean optimizer.lr?"));
  EXPECT_THAT(
      message_of({"optimizer.learning_rate=3"}),
      ::testing::EndsWith("unknown key optimizer.learning_rate; did you mean optimizer.lr?"));
}

TEST(config, a_schedule_of_the_learning_rate_must_fit_its_length) {
  EXPECT_EQ(message_of({"optimizer.schedule=linear", "train.steps=5"}), "accepted");
  EXPECT_EQ(message_of({"optimizer.schedule=wsd", "optimizer.wsd_decay_steps=80"}), "accepted");
  EXPECT_EQ(message_of({"optimizer.schedule=wsd", "optimizer.wsd_decay_steps=81"}),
            "optimizer.wsd_decay_steps = 81: with optimizer.warmup_steps = 20 that is more than "
            "train.steps = 100");
  EXPECT_THAT(message_of({"optimizer.schedule=wsd", "optimizer.wsd_decay_steps=31",
                          "optimizer.decay_steps=50"}),
              ::testing::EndsWith("more than optimizer.decay_steps = 50"));
  EXPECT_THAT(
      message_of({"optimizer.schedule=wsd"}),
      ::testing::HasSubstr("wsd with optimizer.wsd_decay_steps = 0: say in how many steps"));
  EXPECT_THAT(
      message_of({"optimizer.decay_steps=20"}),
      ::testing::HasSubstr("optimizer.decay_steps = 20 with optimizer.warmup_steps = 20: "));
  EXPECT_EQ(message_of({"optimizer.decay_steps=21"}), "accepted");
  EXPECT_THAT(message_of({"optimizer.schedule=WSD"}),
              ::testing::EndsWith("must be one of cosine, linear, constant, wsd"));
}

TEST(config, no_message_and_no_line_has_an_empty_unit_or_more_than_100_columns) {
  EXPECT_THAT(message_of({"optimizer.lr=nan"}),
              ::testing::EndsWith("lr = nan: must be at least 0"));
  EXPECT_THAT(
      message_of({"optimizer.lr=10^30"}),
      ::testing::EndsWith("lr = 10^30: not a number as TOML writes it, such as 0.001 or 1e30"));
  EXPECT_THAT(
      message_of({"train.steps=few"}),
      ::testing::EndsWith("few: not a whole number as TOML writes it, such as 1000 (steps)"));
  EXPECT_THAT(message_of({"train.overwrite=yes"}), ::testing::EndsWith("= yes: not true or false"));
  std::istringstream lines(print_config(Config{}));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    EXPECT_THAT(line, ::testing::Not(::testing::ContainsRegex("[[]-|[(]-[)]")));
  }
}

TEST(config, wrong_types_and_values_name_the_key_and_what_is_right) {
  EXPECT_THAT(message_of({"batch.seed=1.5"}),
              ::testing::HasSubstr("batch.seed expects an integer"));
  EXPECT_THAT(message_of({"train.overwrite=1"}), ::testing::HasSubstr("true or false"));
  EXPECT_THAT(message_of({"optimizer.lr=fast"}), ::testing::HasSubstr("optimizer.lr = fast"));
  EXPECT_THAT(message_of({"model.dtype=int8"}),
              ::testing::HasSubstr("one of float32, bfloat16, float64"));
  EXPECT_THAT(message_of({"batch.nano_batches=0"}), ::testing::HasSubstr("at least 1"));
  EXPECT_THAT(message_of({"batch.nano_batch_tokens=1000000000000"}),
              ::testing::HasSubstr("at most 1073741824"));
  EXPECT_THAT(message_of({"model.hidden_size=1000000000"}),
              ::testing::HasSubstr("at most 1048576"));
  EXPECT_THAT(message_of({"optimizer.lr=inf"}), ::testing::HasSubstr("at most"));
  EXPECT_THAT(message_of({"plan.tolerance=1e300"}), ::testing::HasSubstr("at most 10"));
  EXPECT_THAT(message_of({"plan.tolerance=20"}), ::testing::HasSubstr("at most 10"));
  EXPECT_THAT(message_of({"plan.tolerance=-0.5"}),
              ::testing::HasSubstr("or -1 for the scheduler's"));
  EXPECT_THAT(message_of({"plan.tolerance=-2"}), ::testing::HasSubstr("plan.tolerance = -2"));
  EXPECT_EQ(message_of({"plan.tolerance=10"}), "accepted");
  EXPECT_EQ(message_of({"plan.tolerance=auto"}), "accepted");
  EXPECT_THAT(message_of({"plan.tolerance=automatic"}), ::testing::HasSubstr("a number or auto"));
  EXPECT_THAT(message_of({"plan.tolerance=true"}), ::testing::HasSubstr("a number or auto"));
  EXPECT_THAT(message_of({"optimizer.lr=auto"}), ::testing::HasSubstr("optimizer.lr = auto"));
  EXPECT_EQ(message_of({"batch.seed=1000000000000"}), "accepted");
  EXPECT_THAT(message_of({"model.num_key_value_heads=3"}), ::testing::HasSubstr("not divisible"));
  EXPECT_THAT(message_of({"batch.max_document_tokens=9999999"}),
              ::testing::HasSubstr("nano_batch_tokens = 8192"));
  EXPECT_THAT(message_of({"data.validation_fraction=1"}), ::testing::HasSubstr("below 1"));
  EXPECT_THAT(message_of({"train.device=cuda"}), ::testing::HasSubstr("gloo carries host memory"));
  EXPECT_THAT(message_of({"comm.backend=mpi"}),
              ::testing::HasSubstr("must be one of gloo, threads, nccl"));
  EXPECT_THAT(message_of({"attention.kernel=fast"}),
              ::testing::HasSubstr("must be one of auto, cpu, aten, fa4, reference"));
  EXPECT_THAT(message_of({"attention.kernel=cpu", "model.dtype=float64"}),
              ::testing::AllOf(::testing::HasSubstr("= cpu computes float32 and bfloat16"),
                               ::testing::HasSubstr("not float64")));
  EXPECT_THAT(
      message_of({"attention.kernel=reference", "train.device=cuda", "comm.backend=threads"}),
      ::testing::HasSubstr("attention.kernel = reference computes on a CPU"));
  const std::vector<std::string> flash4 = {"attention.kernel=fa4", "train.device=cuda",
                                           "comm.backend=threads", "model.dtype=bfloat16"};
  EXPECT_EQ(message_of(flash4), "accepted");
  std::vector<std::string> other_heads = flash4;
  other_heads.emplace_back("model.head_dim=96");
  EXPECT_THAT(message_of(other_heads),
              ::testing::HasSubstr("attention.kernel = fa4 computes heads of 64 or 128"));
  EXPECT_EQ(message_of({"attention.kernel=cpu", "model.dtype=bfloat16"}), "accepted");
  EXPECT_EQ(message_of({"attention.kernel=aten", "model.dtype=float64"}), "accepted");
  EXPECT_THAT(message_of({"seed"}), ::testing::HasSubstr("section.key=value"));
}

TEST(config, a_profile_of_such_heads_says_which_kernel_is_fastest) {
  const auto path =
      std::filesystem::path(::testing::TempDir()) / fmt::format("distca_kernels_{}.json", getpid());
  AttentionProfile profile = h200_profile();  // 4 heads of 128 for a key head, in bf16
  profile.forward_kernels = {"aten", "fa4"};
  profile.backward_kernels = {"fa4"};
  write_file_atomically(path, profile_to_json(profile));
  const auto measured = [&](int heads, int key_heads, int head_dim, const std::string& type) {
    const Config config = load_config("", {"plan.profile=" + path.string(), "model.dtype=" + type,
                                           fmt::format("model.num_attention_heads={}", heads),
                                           fmt::format("model.num_key_value_heads={}", key_heads),
                                           fmt::format("model.head_dim={}", head_dim)});
    return kernel_request(config).measured;
  };
  const MeasuredKernels none, of_profile{.forward = {KernelChoice::kAten, KernelChoice::kFa4},
                                         .backward = {KernelChoice::kFa4}};
  EXPECT_EQ(measured(4, 1, 128, "bfloat16"), of_profile);
  EXPECT_EQ(measured(16, 4, 128, "bfloat16"), of_profile) << "more heads, in groups as large";
  EXPECT_EQ(measured(16, 8, 128, "bfloat16"), none);
  EXPECT_EQ(measured(4, 1, 64, "bfloat16"), none);
  EXPECT_EQ(measured(4, 1, 128, "float32"), none);
  EXPECT_EQ(measured_kernels(nullptr), none);
  std::filesystem::remove(path);
}

TEST(config, a_number_type_has_several_names) {
  for (const auto& [name, type] : {std::pair("bf16", ScalarType::kBFloat16),
                                   {"bfloat16", ScalarType::kBFloat16},
                                   {"fp32", ScalarType::kFloat32},
                                   {"fp64", ScalarType::kFloat64}}) {
    const Config config = load_config({}, {fmt::format("model.dtype={}", name)});
    EXPECT_EQ(config.model.dtype, type) << name;
  }
  EXPECT_THAT(message_of({"model.dtype=fp16"}),
              ::testing::HasSubstr("must be one of float32, bfloat16, float64"));
}

TEST(config, numbers_of_the_model_have_the_bounds_of_a_config_json) {
  EXPECT_EQ(message_of({"model.rope_theta=3580165449"}), "accepted");
  EXPECT_THAT(message_of({"model.rms_norm_eps=2.0"}), ::testing::HasSubstr("must be at most 1"));
  EXPECT_THAT(message_of({"model.hidden_size=2000000"}), ::testing::HasSubstr("at most 1048576"));
}

TEST(config, an_override_is_one_line_of_toml) {
  EXPECT_THAT(
      message_of({"train.steps=1\ntrain=2"}),
      ::testing::HasSubstr("train.steps = 1 train=2: not a whole number as TOML writes it"));
  EXPECT_THAT(message_of({"train.steps=1\n[optimizer]\nlr=2"}),
              ::testing::HasSubstr("not a whole"));
}

TEST(config, text_that_no_configuration_file_can_hold_is_refused) {
  const std::string says = "command line: data.prefix = \"\xff\": not UTF-8, as a configuration is";
  EXPECT_EQ(message_of({"data.prefix=\xff"}), says);
  const std::string odd = "a\tb\n\x1b\"\\'\u00e9 ";
  const Config config = load_config({}, {"data.prefix=" + odd});
  EXPECT_EQ(config.data.prefix, odd);
}

TEST(config, measured_speeds_enter_plans_only_where_runs_need_not_repeat) {
  EXPECT_THAT(message_of({"servers.reweight=true"}),
              ::testing::HasSubstr("set train.deterministic=false"));
  EXPECT_EQ(message_of({"servers.reweight=true", "train.deterministic=false"}), "accepted");
  EXPECT_THAT(
      message_of({"servers.reweight=true", "train.deterministic=false", "servers.capacity=1,2"}),
      ::testing::HasSubstr("either measured or given"));
  EXPECT_THAT(
      message_of({"servers.reweight=true", "train.deterministic=false", "plan.scheduler=local"}),
      ::testing::HasSubstr("servers.reweight = true with plan.scheduler = local: it keeps"));
  const auto measures = [](const std::vector<std::string>& overrides) {
    return measures_speeds(load_config("", overrides));
  };
  EXPECT_FALSE(measures({}));
  EXPECT_FALSE(measures({"train.deterministic=false"}));
  EXPECT_FALSE(measures({"plan.tolerance=auto"}));
  EXPECT_TRUE(measures({"plan.tolerance=auto", "train.deterministic=false"}));
  EXPECT_TRUE(measures({"servers.reweight=true", "train.deterministic=false"}));
}

TEST(config, an_automatic_tolerance_is_printed_as_it_is_read) {
  EXPECT_THAT(print_config(load_config("", {"plan.tolerance=auto"})),
              ::testing::HasSubstr("tolerance = \"auto\"  # "));
}

TEST(config, a_list_is_an_array_and_needs_no_brackets_on_the_command_line) {
  const std::vector<int64_t> capacity = {3, 1};
  EXPECT_EQ(load_config("", {"servers.capacity=3,1"}).servers.capacity, capacity);
  EXPECT_EQ(load_config("", {"servers.capacity=[3, 1]"}).servers.capacity, capacity);
  EXPECT_TRUE(load_config("", {"servers.capacity="}).servers.capacity.empty());
  const Config config = load_config("", {"model.layer_types=full_attention,sliding_attention",
                                         "model.num_hidden_layers=2", "model.sliding_window=64"});
  EXPECT_THAT(config.model.layer_types,
              ::testing::ElementsAre("full_attention", "sliding_attention"));
  EXPECT_THAT(recorded_config(config),
              ::testing::HasSubstr("layer_types = ['full_attention', 'sliding_attention']\n"));
  EXPECT_THAT(message_of({"servers.capacity=3,-1"}),
              ::testing::HasSubstr("servers.capacity = -1: must be at least 0"));
  EXPECT_THAT(message_of({"servers.capacity=3,1.5"}),
              ::testing::HasSubstr("servers.capacity expects an array of whole numbers"));
  EXPECT_THAT(message_of({"servers.capacity=3;1"}),
              ::testing::HasSubstr("servers.capacity = 3;1: not whole numbers, as 60,40,100"));
}

TEST(config, choices_are_printed_and_the_empty_word_is_quoted) {
  EXPECT_THAT(print_config(load_config("", {})), ::testing::HasSubstr("one of \"\","));
  EXPECT_THAT(message_of({"plan.layout=diagonal"}),
              ::testing::AllOf(::testing::HasSubstr("must be one of \"\", "),
                               ::testing::HasSubstr("sequential")));
  EXPECT_THAT(message_of({"plan.scheduler=gredy"}), ::testing::EndsWith("; did you mean greedy?"));
  EXPECT_THAT(message_of({"plan.profile=h20"}), ::testing::HasSubstr("h200"));
}

TEST(config, a_file_that_is_missing_or_not_toml_is_one_line) {
  EXPECT_THROW(load_config("/nowhere/x.toml", {}), Error);
  const auto path =
      std::filesystem::path(::testing::TempDir()) / fmt::format("distca_bad_{}.toml", getpid());
  write_file_atomically(path, "[batch]\nseed = = 3\n");
  try {
    load_config(path, {});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("line 2"));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace distca
