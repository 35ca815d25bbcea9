// `distca train` from end to end: every way to run the same training gives the same losses and
// weights, it learns, and it leaves the files it promises.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "distca/base/file.h"
#include "distca/batch/indexed_dataset.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const Words kThreads = {"model.dtype=float64", "comm.backend=threads", "--workers"};

class WorkersTest : public TrainingTest, public ::testing::WithParamInterface<int> {};

TEST_P(WorkersTest, processes_give_the_bits_of_threads_and_so_does_a_second_run) {
  const std::string workers = std::to_string(GetParam());
  const Training threads = train("threads", {"--workers", workers, "comm.backend=threads"});
  EXPECT_EQ(threads.losses.size(), 6u);
  EXPECT_EQ(threads.validation.size(), 2u);
  EXPECT_GT(threads.bytes_sent, 0);
  expect_same_bits(train("processes", {"--workers", workers}), threads);
  expect_same_bits(train("again", {"--workers", workers}), threads);
}

INSTANTIATE_TEST_SUITE_P(counts, WorkersTest, ::testing::Values(2, 3));

TEST_F(TrainingTest, every_number_of_workers_and_scheduler_trains_the_same_model) {
  const Training one = train("one", joined(kThreads, {"1"}));
  EXPECT_EQ(one.bytes_sent, 0);
  EXPECT_NE(one.losses.front(), one.losses.back());
  for (const auto& [name, more] :
       std::map<std::string, Words>{{"greedy2", {"2", "plan.scheduler=greedy"}},
                                    {"balanced2", {"2"}},
                                    {"balanced3", {"3"}},
                                    {"sub_ranges3", {"3", "plan.split_kv=true"}},
                                    {"spread3", {"3", "plan.spread=true"}},
                                    {"local2", {"2", "plan.scheduler=local"}},
                                    {"local3", {"3", "plan.scheduler=local"}},
                                    {"processes3", {"3", "comm.backend=gloo"}}}) {
    const Training many = train(name, joined(kThreads, more));
    EXPECT_GT(many.bytes_sent, 0) << name;
    expect_same_result(many, one, name);
  }
}

TEST_F(TrainingTest, every_schedule_pool_of_servers_and_way_of_keys_trains_the_same_model) {
  const Training one = train("one", joined(kThreads, {"1", "train.overlap=none"}));
  const std::string dedicated = "servers.dedicated=1", alone = "servers.in_place=false";
  for (const auto& [name, more] : std::map<std::string, Words>{
           {"none", {"2", "train.overlap=none"}},
           {"none_redispatched", {"3", "train.overlap=none", "exchange.keys=redispatch"}},
           {"none_mixed", {"2", "train.overlap=none", dedicated, "exchange.keys=keep"}},
           {"none_alone", {"2", "train.overlap=none", dedicated, alone}},
           {"within", {"3", "train.overlap=within"}},
           {"within_mixed", {"2", "train.overlap=within", dedicated, "exchange.keys=redispatch"}},
           {"within_alone", {"2", "train.overlap=within", dedicated, alone}},
           {"ping_pong_redispatched", {"2", "exchange.keys=redispatch"}},
           {"ping_pong_three", {"2", "batch.nano_batches=3", "batch.nano_batch_tokens=384"}},
           {"ping_pong_mixed", {"2", dedicated, "servers.capacity=1,2,3"}},
           {"ping_pong_alone", {"2", dedicated, alone, "exchange.keys=redispatch"}},
           {"ping_pong_many", {"1", "servers.dedicated=3", alone}},
           {"ping_pong_processes", {"2", dedicated, "comm.backend=gloo"}}}) {
    const Training got = train(name, joined(kThreads, more));
    EXPECT_GT(got.bytes_sent, 0) << name;
    const Training want =
        name == "ping_pong_three"
            ? train("one_of_three", joined(kThreads, {"1", "train.overlap=none", more[1], more[2]}))
            : one;
    expect_same_result(got, want, name);
  }
}

class ServersTest : public TrainingTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(ServersTest, beside_a_dedicated_server_a_second_run_and_processes_give_the_same_bits) {
  const auto run = [&](const char* name, const char* backend) {
    return train(name, {"--workers", "2", "servers.dedicated=1", GetParam(),
                        fmt::format("comm.backend={}", backend)});
  };
  const Training threads = run("threads", "threads");
  EXPECT_EQ(threads.losses.size(), 6u);
  expect_same_bits(run("again", "threads"), threads);
  expect_same_bits(run("processes", "gloo"), threads);
  for (const Json& line : metrics("processes")) {
    ASSERT_EQ(line.at("attention_s").size(), 3u);
    EXPECT_GT(line.at("attention_s")[2], 0) << "the dedicated server";
  }
}

INSTANTIATE_TEST_SUITE_P(pools, ServersTest,
                         ::testing::Values("servers.in_place=true", "servers.in_place=false"),
                         [](const auto& info) { return info.index == 0 ? "mixed" : "alone"; });

TEST_F(TrainingTest, a_gradient_that_is_not_finite_ends_every_rank_with_one_line) {
  for (const char* backend : {"threads", "gloo"}) {
    const Words more = {"--workers",           "2",
                        "servers.dedicated=1", fmt::format("comm.backend={}", backend),
                        "optimizer.lr=1e9",    "optimizer.warmup_steps=0",
                        "train.steps=50",      "comm.grace_s=1"};
    const std::string line = error_line(run_distca(arguments(more, backend)), 3);
    // The step that diverged is in the metrics, its figures null where they are no numbers.
    const std::vector<Json> lines = metrics(backend);
    ASSERT_FALSE(lines.empty());
    const Json& last = lines.back();
    EXPECT_TRUE(last.at("loss").is_null() || last.at("grad_norm").is_null()) << last;
    const int step = last.at("step");
    EXPECT_THAT(line, StartsWith(fmt::format("step {}: ", step)));
    EXPECT_THAT(line,
                EndsWith(fmt::format("is not finite; lower optimizer.lr (now 1000000000); the "
                                     "state after step {} is saved, --resume goes on from "
                                     "it\n",
                                     step - 1)));
  }
}

TEST_F(TrainingTest, initial_weights_do_not_depend_on_the_instruction_set) {
  std::vector<std::string> weights;
  for (const char* isa : {"default", "avx2"}) {
    const Outcome outcome =
        Program(arguments({"train.steps=0"}, isa), {{"ATEN_CPU_CAPABILITY", isa}}).wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("Nothing was trained (train.steps = 0)"));
    weights.push_back(read_file(folder_ / isa / "model.safetensors"));
  }
  EXPECT_TRUE(weights[0] == weights[1]);
}

TEST_F(TrainingTest, validation_documents_without_a_next_token_give_no_figure) {
  // One document of text and 19 that are empty, which are not set aside, or of one byte, which are.
  for (const auto& [length, words] : {std::pair(0, "none for validation, no validation loss"),
                                      std::pair(1, "no next token: no validation loss")}) {
    const fs::path prefix = folder_ / fmt::format("rest_of_{}", length);
    IndexedDatasetWriter writer(prefix, TokenType::kUint8);
    for (int i = 0; i < 20; ++i)
      writer.add_document(std::vector<int32_t>(static_cast<size_t>(i == 0 ? 1200 : length), 97));
    writer.finish();
    const std::string run = fmt::format("run_{}", length);
    const Outcome outcome = succeed(train_arguments(prefix, folder_ / run, {"train.steps=1"}));
    EXPECT_THAT(outcome.out, AllOf(HasSubstr(words), Not(HasSubstr("validation loss 0"))));
    EXPECT_FALSE(metrics(run).back().contains("validation_loss"));
  }
}

TEST_F(TrainingTest, loss_and_validation_loss_fall_below_the_bigram_entropy) {
  const Training training = train("run", {"--workers", "2", "train.steps=60",
                                          "train.validation_every=10", "optimizer.lr=1e-2"});
  ASSERT_EQ(training.losses.size(), 60u);
  ASSERT_EQ(training.validation.size(), 6u);
  // Before the first update the model knows nothing: every byte alike, ln 256 nats.
  EXPECT_NEAR(training.losses.front(), std::log(256.0), 0.1);
  // Counting pairs of bytes would reach about 0.9 nats. A lower loss shows that context helped.
  const Json data = Json::parse(succeed({"data", "show", prefix_, "--json"}).out);
  const double bigram = data.at("bigram_nats");
  EXPECT_LT(bigram, 0.5 * training.validation.front());
  EXPECT_LT(training.losses.back(), bigram);
  EXPECT_LT(training.validation.back(), bigram);
}

TEST_F(TrainingTest, validation_batches_are_the_same_each_time_and_never_a_steps) {
  const auto frozen = [&](int every) {
    return train(fmt::format("every_{}", every),
                 {"--workers", "2", "comm.backend=threads", "train.steps=5", "optimizer.lr=0",
                  fmt::format("train.validation_every={}", every)});
  };
  const Training each = frozen(1), second = frozen(2), last = frozen(0);
  ASSERT_EQ(each.validation.size(), 5u);
  // Nothing is learned: another loss would be that of other batches.
  EXPECT_THAT(each.validation, Each(each.validation[0]));
  EXPECT_THAT(second.validation,
              ElementsAre(each.validation[0], each.validation[0], each.validation[0]));
  EXPECT_THAT(last.validation, ElementsAre(each.validation[0]));
  EXPECT_THAT(each.losses, Not(Contains(each.validation[0])));
  EXPECT_EQ(std::set<double>(each.losses.begin(), each.losses.end()).size(), 5u);
  EXPECT_EQ(second.losses, each.losses);
  EXPECT_EQ(last.losses, each.losses);
}

TEST_F(TrainingTest, ranks_that_another_launcher_started_train_the_same) {
  const Training ours = train("ours", {"--workers", "2"});
  const Words theirs = arguments({"comm.grace_s=1"}, "theirs");
  for (const Outcome& outcome : run_torchrun(theirs, theirs)) EXPECT_EQ(outcome.exit_code, 0);
  expect_same_bits(read_training("theirs"), ours);
}

TEST_F(TrainingTest, the_last_ranks_of_another_launcher_are_the_dedicated_servers) {
  const Training ours = train("ours", {"--workers", "1", "servers.dedicated=1"});
  const Words theirs = arguments({"comm.grace_s=1", "servers.dedicated=1"}, "theirs");
  for (const Outcome& outcome : run_torchrun(theirs, theirs)) EXPECT_EQ(outcome.exit_code, 0);
  expect_same_bits(read_training("theirs"), ours);
}

TEST_F(TrainingTest, a_run_leaves_the_files_it_promises) {
  const Outcome outcome = succeed(arguments({"--workers", "2"}));
  EXPECT_THAT(files_below(run_),
              ElementsAre("config.json", "config.toml", "generation_config.json", "metrics.jsonl",
                          "model.safetensors", "tokenizer.json", "tokenizer_config.json"));
  const std::vector<Json> lines = metrics();
  ASSERT_EQ(lines.size(), 6u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json& line = lines[i];
    EXPECT_EQ(line.at("step"), i + 1);
    EXPECT_EQ(line.at("tokens"), 2 * 512);
    for (const char* name :
         {"loss", "grad_norm", "lr", "step_s", "tokens_per_s", "model_flops_per_s", "share_of_peak",
          "bytes_sent", "bytes_packed", "bytes_unpacked", "plan_s", "plan_wait_s"})
      EXPECT_GT(line.at(name), 0) << name;
    EXPECT_GE(line.at("imbalance_before"), 1);
    EXPECT_GE(line.at("imbalance_after"), 1);
    EXPECT_LE(line.at("imbalance_after"), line.at("imbalance_before"));
    EXPECT_EQ(line.contains("validation_loss"), i == 2 || i == 5);
    ASSERT_EQ(line.at("attention_s").size(), 2u);
    for (const Json& seconds : line.at("attention_s")) EXPECT_GT(seconds, 0);
    EXPECT_FALSE(line.contains("attention_predicted_s")) << "nothing predicts it";
    EXPECT_EQ(line.at("price"), "pairs");
    EXPECT_THAT(line.at("kernel").get<std::string>(), StartsWith("cpu-"));
    EXPECT_EQ(line.at("overlap"), "ping-pong");
    EXPECT_GE(line.at("bytes_copied"), 0);
    for (const char* part : {"pack_ms", "issue_ms", "wait_ms", "land_ms"})
      EXPECT_GT(line.at("exchange").at(part), 0) << part;
    for (const char* pass : {"forward", "backward"}) {
      for (const char* phase : {"embed", "pre_attention", "dispatch", "core_attention", "combine",
                                "post_attention", "loss"})
        EXPECT_GT(line.at("phases").at(fmt::format("{}_{}_ms", pass, phase)), 0);
    }
  }
  EXPECT_THAT(outcome.out, AllOf(HasSubstr((run_ / "model.safetensors").string()),
                                 HasSubstr("(float32 multiply-adds)")));
  // A run can be run again from its config.toml.
  succeed({"train", "--config", run_ / "config.toml", "--workers", "2",
           "train.output_dir=" + (folder_ / "again").string()});
  expect_same_bits(read_training("again"), read_training("run"));
}

TEST_F(TrainingTest, every_attention_kernel_trains_the_same_model) {
  std::map<std::string, Training> by_kernel;
  for (const char* kernel : {"auto", "cpu", "aten", "reference"}) {
    by_kernel[kernel] = train(kernel, {"--workers", "2", "comm.backend=threads",
                                       fmt::format("attention.kernel={}", kernel)});
    EXPECT_THAT(metrics(kernel).front().at("kernel").get<std::string>(),
                StartsWith(std::string(kernel) == "auto" ? "cpu-" : kernel));
  }
  expect_same_bits(by_kernel.at("cpu"), by_kernel.at("auto"));
  EXPECT_NE(by_kernel.at("aten").norms, by_kernel.at("cpu").norms) << "the same kernel twice";
  // Six steps of fp32, each up to 1e-5 off.
  for (const char* kernel : {"cpu", "aten"}) {
    expect_near(by_kernel.at(kernel).losses, by_kernel.at("reference").losses, 1e-4, kernel);
    expect_near(by_kernel.at(kernel).norms, by_kernel.at("reference").norms, 1e-3, kernel);
  }
}

TEST_F(TrainingTest, a_window_is_trained_as_planned) {
  const std::string window = "model.sliding_window=100";
  const Training one = train("one", joined(kThreads, {"1", window}));
  expect_same_result(train("many", joined(kThreads, {"3", window})), one, "window");
  // And where only some layers have it.
  const std::string types = "model.layer_types=full_attention,sliding_attention";
  const Training mixed = train("mixed", joined(kThreads, {"1", window, types}));
  EXPECT_NE(mixed.losses, one.losses);
  const Words three = {"3", window, types, "servers.dedicated=1"};
  expect_same_result(train("mixed_many", joined(kThreads, three)), mixed, "windows");
}

/// The header of a safetensors file's bytes, and the tensors behind it.
std::pair<Json, std::string> header_and_tensors(const std::string& bytes) {
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  return {Json::parse(bytes.substr(sizeof(size), size)), bytes.substr(sizeof(size) + size)};
}

TEST_F(TrainingTest, weights_have_hugging_face_names_and_shapes) {
  const Training run = train("run", {"train.steps=1", "model.intermediate_size=48"});
  Json header = header_and_tensors(run.weights).first;
  header.erase("__metadata__");
  std::map<std::string, Json> want = {{"model.embed_tokens.weight", {256, 32}},
                                      {"model.norm.weight", {32}},
                                      {"lm_head.weight", {256, 32}}};
  for (const auto& [name, shape] : std::map<std::string, Json>{{"input_layernorm", {32}},
                                                               {"post_attention_layernorm", {32}},
                                                               {"self_attn.q_proj", {32, 32}},
                                                               {"self_attn.k_proj", {16, 32}},
                                                               {"self_attn.v_proj", {16, 32}},
                                                               {"self_attn.o_proj", {32, 32}},
                                                               {"mlp.gate_proj", {48, 32}},
                                                               {"mlp.up_proj", {48, 32}},
                                                               {"mlp.down_proj", {32, 48}}}) {
    for (const int layer : {0, 1})
      want[fmt::format("model.layers.{}.{}.weight", layer, name)] = shape;
  }
  std::map<std::string, Json> got;
  for (const auto& [name, entry] : header.items()) got[name] = entry.at("shape");
  EXPECT_EQ(got, want);
  const Json config = read_json(run_ / "config.json");
  EXPECT_EQ(config.at("architectures"), Json({"LlamaForCausalLM"}));
  EXPECT_EQ(config.at("num_key_value_heads"), 2);
  EXPECT_EQ(config.at("head_dim"), 8);
  EXPECT_EQ(config.at("intermediate_size"), 48);
}

TEST_F(TrainingTest, a_run_of_no_steps_saves_the_initial_weights) {
  const Training none = train("none", {"--workers", "2", "train.steps=0"});
  EXPECT_TRUE(none.losses.empty());
  // Not their headers, which say after how many steps they were saved.
  const auto tensors = [](const Training& run) { return header_and_tensors(run.weights).second; };
  EXPECT_FALSE(tensors(none).empty());
  EXPECT_TRUE(tensors(none) == tensors(train("frozen", {"train.steps=1", "optimizer.lr=0"})));
  EXPECT_FALSE(tensors(none) == tensors(train("moved", {"train.steps=1"})));
}

}  // namespace
}  // namespace distca::testing
