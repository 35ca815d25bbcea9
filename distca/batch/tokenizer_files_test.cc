#include "distca/batch/tokenizer_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/sha256.h"
#include "distca/batch/test_folder.h"

namespace distca {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TokenizerFilesTest : public FolderTest {
 protected:
  std::string set(const std::string& name, TokenType type) const {
    IndexedDatasetWriter writer(folder_ / name, type);
    writer.add_document(std::vector<int32_t>{1, 2, 3});
    writer.finish();
    return folder_ / name;
  }
  /// A set of uint16 that a tokenizer made.
  std::string tokenized(const std::string& name, const std::string& tokenizer,
                        bool appends_eod = true, const std::string& sha256 = "5a") const {
    const std::string prefix = set(name, TokenType::kUint16);
    save_tokenizer(prefix,
                   {.sha256 = sha256,
                    .vocab_size = 4,
                    .eod_token = "<end>",
                    .eod_token_id = appends_eod ? 3 : -1,
                    .documents = 1,
                    .tokens = 3,
                    .largest_id = 3},
                   {{"tokenizer.json", tokenizer}});
    return prefix;
  }
  static Json generation(const FilesByName& files) {
    return Json::parse(files.at("generation_config.json"));
  }
};

TEST_F(TokenizerFilesTest, a_set_of_bytes_has_a_tokenizer_of_256_ids) {
  const FilesByName files = files_beside_weights(DataBlend(set("set", TokenType::kUint8)));
  EXPECT_EQ(files.size(), 3u);
  EXPECT_TRUE(generation(files).at("eos_token_id").is_null());
  const Json vocabulary = Json::parse(files.at("tokenizer.json")).at("model").at("vocab");
  EXPECT_EQ(vocabulary.size(), 256u);
  EXPECT_EQ(vocabulary.at("a"), 'a');
  EXPECT_EQ(vocabulary.at("\u0120"), ' ');  // GPT-2 has the same names
  EXPECT_EQ(vocabulary.at("\u010a"), '\n');
  EXPECT_EQ(vocabulary.at("\u00ff"), 255);
  EXPECT_EQ(vocabulary.at("\u0143"), 0xad);
}

TEST_F(TokenizerFilesTest, a_folder_of_the_tokenizers_name_keeps_what_is_no_tokenizers) {
  const fs::path folder = tokenizer_folder(tokenized("set", "older"));
  for (const char* name : {"merges.txt", "model.safetensors"})
    write_file_atomically(folder / name, "by hand");
  const std::string prefix = tokenized("set", "mine");
  EXPECT_EQ(read_file(folder / "model.safetensors"), "by hand");
  EXPECT_FALSE(fs::exists(folder / "merges.txt"));
  const FilesByName files = files_beside_weights(DataBlend(prefix));
  EXPECT_EQ(files.at("tokenizer.json"), "mine");
  EXPECT_FALSE(files.contains("model.safetensors"));
  fs::rename(folder, folder_ / "model");
  fs::create_directory_symlink(folder_ / "model", folder);
  tokenized("set", "newest");
  EXPECT_EQ(read_file(folder / "tokenizer.json"), "newest");
  EXPECT_EQ(read_file(folder_ / "model" / "tokenizer.json"), "mine");
}

TEST_F(TokenizerFilesTest, the_record_says_which_ids_a_set_has_unless_it_is_of_another_one) {
  const std::string prefix = tokenized("set", "{}");
  const IndexedDataset data(prefix);
  const auto ids = recorded_ids(prefix, data);
  ASSERT_TRUE(ids);
  EXPECT_EQ(ids->largest, 3);
  EXPECT_EQ(ids->vocab_size, 4);
  IndexedDatasetWriter writer(prefix, TokenType::kUint16);
  writer.add_document(std::vector<int32_t>{1, 2, 9, 9});
  EXPECT_EQ(writer.largest_id(), 9);
  writer.finish();
  EXPECT_FALSE(recorded_ids(prefix, IndexedDataset(prefix)));
  const FilesByName unknown = files_beside_weights(DataBlend(prefix));
  EXPECT_EQ(unknown.size(), 1u) << "the tokenizer of the set before";
  EXPECT_TRUE(generation(unknown).at("eos_token_id").is_null());
  write_file_atomically(folder_ / "model" / "tokenizer.json", "other");
  check_tokenizer(DataBlend(prefix), folder_ / "model");  // not known: nothing to compare
  EXPECT_FALSE(recorded_ids(set("other", TokenType::kUint16), data));
}

TEST_F(TokenizerFilesTest, a_tokenized_set_has_its_tokenizer_and_its_end) {
  const std::string prefix = tokenized("set", "mine");
  const FilesByName files = files_beside_weights(DataBlend(prefix));
  EXPECT_EQ(files.at("tokenizer.json"), "mine");
  EXPECT_EQ(generation(files).at("eos_token_id"), 3);
  const FilesByName endless = files_beside_weights(DataBlend(tokenized("other", "mine", false)));
  EXPECT_TRUE(generation(endless).at("eos_token_id").is_null());
  // config.json says the same, unless it says something itself.
  EXPECT_EQ(with_eos_token_id({{"eos_token_id", nullptr}}, files), Json({{"eos_token_id", 3}}));
  EXPECT_EQ(with_eos_token_id({{"eos_token_id", 5}}, files), Json({{"eos_token_id", 5}}));
  EXPECT_EQ(with_eos_token_id({{"vocab_size", 9}}, {}), Json({{"vocab_size", 9}}));

  fs::remove(tokenizer_record_file(prefix));
  fs::remove_all(tokenizer_folder(prefix));
  EXPECT_EQ(files_beside_weights(DataBlend(prefix)).size(), 1u) << "not known any more";
}

TEST_F(TokenizerFilesTest, a_blend_has_one_tokenizer) {
  const std::string a = tokenized("a", "mine"), b = tokenized("b", "mine"),
                    unknown = set("unknown", TokenType::kUint16);
  EXPECT_EQ(
      files_beside_weights(DataBlend("1 " + unknown + " 1 " + a + " 1 " + b)).at("tokenizer.json"),
      "mine");
  const std::string other = tokenized("c", "other");
  try {
    files_beside_weights(DataBlend("1 " + a + " 1 " + other));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), HasSubstr(a + " and " + other + " were made with different"));
  }
}

TEST_F(TokenizerFilesTest, a_model_of_another_tokenizer_is_refused_by_name) {
  const fs::path model = folder_ / "model";
  // Makes {"model": {"vocab": {...}}}, as tokenizers write it.
  const auto text = [](const char* vocabulary, const char* more = "") {
    return fmt::format(R"({{"model": {{"vocab": {}}}{}}})", vocabulary, more);
  };
  const std::string mine = text(R"({"a": 0, "b": 1})"), other = text(R"({"a": 1, "b": 0})");
  const std::string prefix = tokenized("set", mine, true, sha256_hex(mine));
  const auto fault = [&](const std::string& data) -> std::string {
    try {
      check_tokenizer(DataBlend(data), model);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(fault(prefix), "") << "a model without a tokenizer";
  write_file_atomically(model / "tokenizer.json", mine);
  EXPECT_EQ(fault(prefix), "");
  write_file_atomically(model / "tokenizer.json", other);
  EXPECT_EQ(fault(prefix),
            fmt::format("{} was made with another tokenizer (SHA-256 {:.12}) than {} ({:.12}): the "
                        "same id means different text in them; prepare the data with --tokenizer "
                        "{}",
                        prefix, sha256_hex(mine), (model / "tokenizer.json").string(),
                        sha256_hex(other), model.string()));
  EXPECT_EQ(fault(set("unknown", TokenType::kUint16)), "") << "nobody knows what made the set";
  EXPECT_THAT(fault("1 " + set("more", TokenType::kUint16) + " 1 " + prefix), HasSubstr(prefix));
  EXPECT_THAT(fault(set("bytes", TokenType::kUint8)), HasSubstr("bytes holds bytes, and "));
  write_file_atomically(model / "tokenizer.json", byte_tokenizer().at("tokenizer.json"));
  EXPECT_EQ(fault(folder_ / "bytes"), "");
  // Other fields, as transformers writes them, do not change the vocabulary; another token does.
  write_file_atomically(model / "tokenizer.json",
                        text(R"({"b": 1, "a": 0})", R"(, "truncation": null, "added_tokens": [])"));
  EXPECT_EQ(fault(prefix), "");
  write_file_atomically(
      model / "tokenizer.json",
      text(R"({"b": 1, "a": 0})", R"(, "added_tokens": [{"id": 2, "content": "<end>"}])"));
  EXPECT_THAT(fault(prefix), HasSubstr("another tokenizer"));
  for (const char* damaged : {"", "[]", "{}", R"({"model": {"vocab": {}}, "added_tokens": [1]})"}) {
    write_file_atomically(model / "tokenizer.json", damaged);
    EXPECT_THAT(fault(prefix), HasSubstr("another tokenizer")) << damaged;
  }
}

TEST_F(TokenizerFilesTest, a_models_folder_has_the_tokenizers_files_and_how_text_ends) {
  for (const char* name : {"tokenizer.json", "merges.txt", "generation_config.json", "config.json",
                           "model.safetensors", "notes.txt"})
    write_file_atomically(folder_ / "model" / name, name);
  fs::create_directories(folder_ / "model" / "vocab.json");
  FilesByName want;
  for (const char* name : {"tokenizer.json", "merges.txt", "generation_config.json"})
    want[name] = name;
  EXPECT_EQ(read_tokenizer(folder_ / "model"), want);
  EXPECT_TRUE(read_tokenizer(folder_ / "absent").empty());
}

TEST_F(TokenizerFilesTest, of_the_model_before_is_set_aside_what_the_new_one_lacks) {
  for (const char* name : {"tokenizer.json", "merges.txt", "generation_config.json", "notes.txt"})
    write_file_atomically(folder_ / name, "of the model before");
  EXPECT_THAT(files_of_other_tokenizer(folder_, {{"tokenizer.json", "of the model before"}}),
              ::testing::IsEmpty());
  const auto others = files_of_other_tokenizer(folder_, {{"tokenizer.json", "new"}});
  EXPECT_THAT(others, ::testing::ElementsAre("generation_config.json", "merges.txt"));
  set_tokenizer_aside(folder_, others);
  EXPECT_TRUE(fs::exists(folder_ / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder_ / "merges.txt"));
  EXPECT_EQ(read_file(folder_ / "merges.txt.older"), "of the model before");
}

TEST_F(TokenizerFilesTest, a_damaged_record_is_named) {
  const std::string prefix = tokenized("set", "mine");
  write_file_atomically(tokenizer_record_file(prefix), "{}");
  try {
    files_beside_weights(DataBlend(prefix));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("set.json: eod_token_id is missing"));
  }
}

}  // namespace
}  // namespace distca
