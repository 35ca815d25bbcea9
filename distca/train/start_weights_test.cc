#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "distca/comm/thread_group.h"
#include "distca/config/run_grid.h"
#include "distca/model/hugging_face_testing.h"
#include "distca/model/weight_table.h"
#include "distca/train/start_weights.h"

namespace distca {
namespace {

using ::testing::HasSubstr;
using testing::small_config;
using testing::TestFolder;

std::string key(const TestFolder& folder) {
  return "model.from=" + std::filesystem::path(folder).string();
}

std::string fault(const std::vector<std::string>& overrides) {
  try {
    load_config("", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(start_weights, the_folder_decides_the_shape_and_the_run_the_type) {
  const TestFolder folder;
  write_file_atomically(folder / "config.json", small_config().dump());
  const Config config = load_config(
      "", {key(folder), "model.dtype=bfloat16", "model.hidden_size=32", "model.rms_norm_eps=1e-6"});
  EXPECT_EQ(config.model.vocab_size, 64);
  EXPECT_EQ(config.model.hidden_size, 32);
  EXPECT_EQ(config.model.dtype, ScalarType::kBFloat16);
  // A run accepts the configuration that another one has recorded.
  write_file_atomically(folder / "again.toml", recorded_config(config));
  EXPECT_EQ(recorded_config(load_config(folder / "again.toml", {})), recorded_config(config));
}

TEST(start_weights, a_key_that_differs_is_refused_by_name) {
  const TestFolder folder;
  Json json = small_config();
  write_file_atomically(folder / "config.json", json.dump());
  EXPECT_THAT(fault({key(folder), "model.hidden_size=64"}),
              HasSubstr("model.hidden_size = 64, and "));
  EXPECT_THAT(fault({key(folder), "model.hidden_size=64"}),
              HasSubstr("config.json makes it 32: leave the key out, or model.from"));
  EXPECT_THAT(fault({key(folder), "model.sliding_window=8"}),
              HasSubstr("model.sliding_window = 8"));
  EXPECT_THAT(fault({key(folder), "model.model_type=qwen2"}),
              HasSubstr("model.model_type = 'qwen2', and "));
  EXPECT_THAT(fault({"model.from=absent"}), HasSubstr("absent: no folder of a model"));
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2}};
  write_file_atomically(folder / "config.json", json.dump());
  EXPECT_EQ(fault({key(folder), R"(model.rope_parameters={"type": "linear", "factor": 2.0})"}), "");
  EXPECT_THAT(fault({key(folder), R"(model.rope_parameters={"type": "linear", "factor": 3})"}),
              HasSubstr("model.rope_parameters = "));
}

/// The values of a weight: its place in the table and a little more for each element.
at::Tensor value_of(size_t weight, const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return (at::arange(numel, at::kFloat).remainder(64) / 64 + static_cast<double>(weight % 8))
      .view(shape);
}

/// Writes the model's weights, in turn as fp32, bf16 and fp16.
void write_model(const TestFolder& folder, const LlamaConfig& model) {
  const at::ScalarType types[] = {at::kFloat, at::kBFloat16, at::kHalf};
  const char* const names[] = {"F32", "BF16", "F16"};
  Json header = Json::object();
  std::string bytes;
  const std::vector<Weight> table = weight_table(model);
  for (size_t i = 0; i < table.size(); ++i) {
    const at::Tensor value = value_of(i, table[i].shape).to(types[i % 3]);
    const size_t begin = bytes.size();
    bytes.append(static_cast<const char*>(value.const_data_ptr()), value.nbytes());
    header[table[i].name] = {{"dtype", names[i % 3]},
                             {"shape", table[i].shape},
                             {"data_offsets", {begin, bytes.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  write_file_atomically(folder / "model.safetensors", file + text + bytes);
}

TEST(start_weights, every_rank_gets_its_weights_in_every_layout) {
  const TestFolder folder;
  Json json = small_config();
  json.merge_patch({{"model_type", "qwen2"},
                    {"architectures", {"Qwen2ForCausalLM"}},
                    {"use_sliding_window", false},
                    {"tie_word_embeddings", true}});
  write_file_atomically(folder / "config.json", json.dump());
  for (const char* layout : {"", "tensor", "parallel.use_distributed_optimizer=true",
                             "parallel.pipeline_model_parallel_size=2"}) {
    for (const char* dtype : {"model.dtype=float32", "model.dtype=bfloat16"}) {
      std::vector<std::string> overrides = {key(folder), dtype};
      const bool divides = layout == std::string_view("tensor");
      if (*layout && !divides) overrides.emplace_back(layout);
      const Config config = load_config("", overrides);
      write_model(folder, config.model);
      check_start_weights(config);
      RunGrid run = run_grid(config, divides ? 1 : 2);
      if (divides) run.tensor = 2;
      run_ranks(2, config.comm, [&](Communicator& comm) {
        WorkerWeights weights(config, comm, run);
        std::vector<std::string> words;
        load_start_weights(nullptr, config, weights, &words);
        ASSERT_EQ(words.size(), 1u);
        EXPECT_THAT(words[0], HasSubstr("26 tensors in 1 file, bfloat16 and float16 and float32"));
        const std::vector<at::Tensor> all =
            gather_trained_weights(comm, &weights, run, config.model);
        if (comm.rank() > 0) return;
        ASSERT_EQ(all.size(), weight_table(config.model).size());
        for (size_t i = 0; i < all.size(); ++i) {
          const at::Tensor want = value_of(i, all[i].sizes().vec());
          const at::ScalarType type = i % 3 == 0   ? at::kFloat
                                      : i % 3 == 1 ? at::kBFloat16
                                                   : at::kHalf;
          EXPECT_TRUE(at::equal(all[i].detach().to(at::kFloat), want.to(type).to(at::kFloat)))
              << layout << " " << dtype << " " << i;
        }
      });
    }
  }
}

TEST(start_weights, random_weights_need_no_folder) {
  const Config config = load_config("", {"model.vocab_size=64", "model.hidden_size=64"});
  check_start_weights(config);
  const RunGrid run = run_grid(config, 1);
  run_ranks(1, config.comm, [&](Communicator& comm) {
    WorkerWeights weights(config, comm, run);
    const at::Tensor before = weights.model.parameters()[0].detach().clone();
    std::vector<std::string> words;
    load_start_weights(nullptr, config, weights, &words);
    EXPECT_TRUE(words.empty());
    EXPECT_TRUE(at::equal(weights.model.parameters()[0].detach(), before));
  });
}

}  // namespace
}  // namespace distca
