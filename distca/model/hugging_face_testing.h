#pragma once
// Small folders as transformers writes them, for tests.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/checkpoint/safetensors.h"

namespace distca::testing {

/// A folder of the running test, which is removed with this.
class TestFolder {
 public:
  TestFolder()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("distca_hf_{}_{}", getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  operator const std::filesystem::path&() const { return path_; }  // NOLINT
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// The config.json of a small Llama in the spelling of transformers 5.
inline Json small_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", 1},
          {"dtype", "float32"},
          {"eos_token_id", {2, 3}},
          {"head_dim", 8},
          {"hidden_act", "silu"},
          {"hidden_size", 32},
          {"initializer_range", 0.02},
          {"intermediate_size", 48},
          {"max_position_embeddings", 4096},
          {"mlp_bias", false},
          {"model_type", "llama"},
          {"num_attention_heads", 4},
          {"num_hidden_layers", 2},
          {"num_key_value_heads", 2},
          {"pretraining_tp", 1},
          {"rms_norm_eps", 1e-6},
          {"rope_parameters", {{"rope_theta", 10000.0}, {"rope_type", "default"}}},
          {"tie_word_embeddings", false},
          {"transformers_version", "5.23.0"},
          {"use_cache", true},
          {"vocab_size", 64}};
}

/// Writes tensors whose bytes are all `fill`.
inline void write_tensors(const std::filesystem::path& path,
                          const std::vector<StoredTensor>& tensors, char fill = 0) {
  AtomicFile file(path);
  file.write(safetensors_header(tensors, {}));
  for (const StoredTensor& tensor : tensors)
    file.write(std::string(static_cast<size_t>(tensor.bytes()), fill));
  file.commit();
}

}  // namespace distca::testing
