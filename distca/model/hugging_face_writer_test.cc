#include "distca/model/hugging_face_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "distca/base/file.h"
#include "distca/model/hugging_face.h"
#include "distca/model/hugging_face_testing.h"

namespace distca {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TestFolder;

/// Three tensors of 40, 16 and 24 bytes in fp32.
std::vector<StoredTensor> three() {
  return {{.name = "a", .shape = {2, 5}}, {.name = "b", .shape = {4}}, {.name = "c", .shape = {6}}};
}

/// Gives element i of tensor t the value 100 t + i.
void count(size_t tensor, std::span<std::byte> bytes) {
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    const auto value = static_cast<float>(100 * tensor + i);
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
}

std::vector<std::string> names(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path().filename());
  std::ranges::sort(found);
  return found;
}

std::string fault_of_call(const std::function<void()>& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "";
}

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

TEST(hugging_face_writer, one_file_keeps_the_name_that_readers_look_for_first) {
  const TestFolder folder;
  const HuggingFaceWriter writer(folder / "new" / "model", three(), {});
  EXPECT_EQ(writer.weights(), folder / "new" / "model" / "model.safetensors");
  writer.write({.config = {{"vocab_size", 3}, {"dtype", "bfloat16"}},
                .metadata = {{"steps", "7"}},
                .beside = {{"tokenizer.json", "{}"}}},
               count);
  const fs::path out = folder / "new" / "model";
  EXPECT_THAT(names(out), ElementsAre("config.json", "model.safetensors", "tokenizer.json"));
  const SafetensorsFile file(out / "model.safetensors");
  EXPECT_EQ(file.metadata().at("steps"), "7");
  ASSERT_EQ(file.tensors().size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(file.tensors()[i].tensor, three()[i]);
  float value = 0;
  std::memcpy(&value, file.bytes(file.at("c")).data() + 5 * sizeof value, sizeof value);
  EXPECT_EQ(value, 205);
  // transformers 5 prefers the newer name of the type, which would be wrong here.
  EXPECT_EQ(read_json(out / "config.json"), Json({{"vocab_size", 3}, {"torch_dtype", "float32"}}));
}

TEST(hugging_face_writer, shards_are_filled_in_turn_and_listed_by_tensor) {
  const TestFolder folder;
  // In bf16 the tensors take 20, 8 and 12 bytes.
  const HuggingFaceWriter writer(folder, three(),
                                 {.type = WeightsType::kBFloat16, .max_shard_bytes = 28});
  EXPECT_EQ(writer.num_shards(), 2u);
  writer.write({.config = Json::object()}, count);
  EXPECT_THAT(names(folder),
              ElementsAre("config.json", kFirst, kSecond, "model.safetensors.index.json"));
  EXPECT_EQ(read_json(writer.weights()),
            Json({{"metadata", {{"total_size", 40}}},
                  {"weight_map", {{"a", kFirst}, {"b", kFirst}, {"c", kSecond}}}}));
  EXPECT_EQ(read_json(folder / "config.json").at("torch_dtype"), "bfloat16");
  const SafetensorsFile second(folder / kSecond);
  EXPECT_EQ(second.tensors().front().tensor.type, ScalarType::kBFloat16);
  EXPECT_EQ(second.bytes(second.at("c"))[1], std::byte{0x43});  // 200 = 0x4348
  EXPECT_EQ(second.bytes(second.at("c"))[0], std::byte{0x48});
  // A tensor that is larger than a file may be has one of its own.
  EXPECT_EQ(HuggingFaceWriter(folder, three(), {.max_shard_bytes = 1}).num_shards(), 3u);
  EXPECT_EQ(HuggingFaceWriter(folder, three(), {.max_shard_bytes = 80}).num_shards(), 1u);
  const std::vector<StoredTensor> many(501, StoredTensor{.name = "a", .shape = {1}});
  EXPECT_EQ(fault_of_call([&] { HuggingFaceWriter(folder, many, {.max_shard_bytes = 4}); },
                          ErrorKind::kUsage),
            "the weights would take 501 files: at most 500; let one be larger");
}

TEST(hugging_face_writer, an_older_model_stays_until_what_belongs_to_it_is_out_of_the_way) {
  const TestFolder folder;
  const HuggingFaceWriter writer(folder, three(), {});
  writer.write({.config = {{"vocab_size", 3}}}, count);
  EXPECT_EQ(fault_of_call(
                [&] {
                  writer.write(
                      {.config = {{"vocab_size", 4}}, .beside = {{"tokenizer.json", "{}"}}}, count,
                      [] { throw Error(ErrorKind::kIo, "it stays"); });
                },
                ErrorKind::kIo),
            "it stays");
  EXPECT_THAT(names(folder), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(read_json(folder / "config.json").at("vocab_size"), 3);
}

/// The bits of a number once it is written.
template <typename From>
uint32_t written(From number, WeightsType type) {
  const TestFolder folder;
  const bool is_double = sizeof(From) == 8;
  const HuggingFaceWriter writer(folder,
                                 {{.name = "a",
                                   .type = is_double ? ScalarType::kFloat64 : ScalarType::kFloat32,
                                   .shape = {1}}},
                                 {.type = type});
  writer.write({.config = Json::object()}, [&](size_t, std::span<std::byte> bytes) {
    std::memcpy(bytes.data(), &number, bytes.size());
  });
  const SafetensorsFile file(folder / "model.safetensors");
  uint32_t bits = 0;
  std::memcpy(&bits, file.bytes(file.at("a")).data(), file.bytes(file.at("a")).size());
  return bits;
}

TEST(hugging_face_writer, numbers_are_rounded_once_to_nearest_and_ties_to_even) {
  constexpr WeightsType kHalf = WeightsType::kFloat16, kBFloat16 = WeightsType::kBFloat16;
  EXPECT_EQ(written(1.0f + 0x1p-8f, kBFloat16), 0x3f80u);                // a tie, down
  EXPECT_EQ(written(1.0f + 3 * 0x1p-8f, kBFloat16), 0x3f82u);            // a tie, up
  EXPECT_EQ(written(-(1.0f + 0x1p-8f + 0x1p-20f), kBFloat16), 0xbf81u);  // above it
  EXPECT_EQ(written(1.0 + 0x1p-8 + 0x1p-40, kBFloat16), 0x3f81u);        // a tie as a float
  EXPECT_EQ(written(1.0f + 0x1p-11f, kHalf), 0x3c00u);
  EXPECT_EQ(written(1.0f + 3 * 0x1p-11f, kHalf), 0x3c02u);
  EXPECT_EQ(written(1.0 + 0x1p-11 + 0x1p-40, kHalf), 0x3c01u);
  EXPECT_EQ(written(-2.0f, kHalf), 0xc000u);
  EXPECT_EQ(written(65519.996f, kHalf), 0x7bffu);  // 65504, the largest
  EXPECT_EQ(written(0x1p-14f, kHalf), 0x0400u);    // the least normal one
  EXPECT_EQ(written(0x1p-14f - 0x1p-30f, kHalf), 0x0400u);
  EXPECT_EQ(written(-3 * 0x1p-25f, kHalf), 0x8002u);  // a tie below it
  EXPECT_EQ(written(0x1p-25f, kHalf), 0x0000u);
  EXPECT_EQ(written(-0.0f, kHalf), 0x8000u);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(written(-kInfinity, kHalf), 0xfc00u);
  EXPECT_EQ(written(std::nan(""), kHalf), 0x7e00u);
  EXPECT_EQ(written(1.0 + 0x1p-24, WeightsType::kFloat32), 0x3f800000u);
}

TEST(hugging_face_writer, a_number_too_large_for_the_type_is_named_and_nothing_is_left) {
  const TestFolder folder;
  const auto write = [&](WeightsType type, float number) {
    const HuggingFaceWriter writer(folder / "new", {{.name = "norm.weight", .shape = {1}}},
                                   {.type = type});
    writer.write({.config = Json::object()}, [&](size_t, std::span<std::byte> bytes) {
      std::memcpy(bytes.data(), &number, sizeof number);
    });
  };
  EXPECT_EQ(fault_of_call([&] { write(WeightsType::kFloat16, -70000); }, ErrorKind::kCheckpoint),
            "norm.weight has the number -70000, which is too large for float16; bfloat16 can hold "
            "it");
  EXPECT_THAT(
      fault_of_call([&] { write(WeightsType::kBFloat16, 3.4e38f); }, ErrorKind::kCheckpoint),
      HasSubstr("which is too large for bfloat16"));
  EXPECT_FALSE(fs::exists(folder / "new"));
}

TEST(hugging_face_writer, older_weights_that_a_reader_would_take_go) {
  const TestFolder folder;
  write_file_atomically(folder / "model.safetensors", "older");
  write_file_atomically(folder / "model-00001-of-00009.safetensors", "older");
  write_file_atomically(folder / "model-00001-of-0000x.safetensors", "somebody's");
  const HuggingFaceWriter writer(folder, three(), {.max_shard_bytes = 56});
  EXPECT_THAT(
      writer.touched(),
      ElementsAre(folder / kFirst, folder / kSecond, folder / "model.safetensors.index.json",
                  folder / "config.json", folder / "model-00001-of-00009.safetensors",
                  folder / "model.safetensors"));
  writer.write({.config = Json::object()}, count);
  EXPECT_THAT(names(folder), ElementsAre("config.json", kFirst, "model-00001-of-0000x.safetensors",
                                         kSecond, "model.safetensors.index.json"));
  HuggingFaceWriter(folder, three(), {}).write({.config = Json::object()}, count);
  EXPECT_THAT(names(folder),
              ElementsAre("config.json", "model-00001-of-0000x.safetensors", "model.safetensors"));
}

/// The steps that the headers of a folder's shards say, by the index that stands there before and
/// after they are read. Nothing without an index.
std::set<std::string> steps_found(const fs::path& folder) {
  const fs::path index = folder / "model.safetensors.index.json";
  const FileDescriptor open_index(open(index.c_str(), O_RDONLY));  // its inode is not taken again
  struct stat before {
  }, after{};
  if (open_index.get() < 0 || fstat(open_index.get(), &before) != 0) return {};
  std::set<std::string> steps;
  for (const char* shard : {kFirst, kSecond}) {
    std::error_code ignored;
    if (fs::exists(folder / shard, ignored))
      steps.insert(read_safetensors_metadata(folder / shard).at("steps"));
  }
  const bool same = stat(index.c_str(), &after) == 0 && before.st_ino == after.st_ino;
  return same ? steps : std::set<std::string>();
}

TEST(hugging_face_writer, no_moment_has_weights_of_two_models) {
  const TestFolder folder;
  const HuggingFaceWriter writer(folder, three(), {.max_shard_bytes = 56});
  std::atomic<bool> done = false;
  std::thread overwrites([&] {
    for (int i = 0; i < 200; ++i)
      writer.write({.config = Json::object(), .metadata = {{"steps", std::to_string(i)}}}, count);
    done = true;
  });
  int64_t looks = 0;
  while (!done) {
    const std::set<std::string> steps = steps_found(folder);
    EXPECT_LE(steps.size(), 1u) << "a mixture";
    looks += std::ssize(steps);
  }
  overwrites.join();
  EXPECT_GT(looks, 0);
}

TEST(hugging_face_writer, where_a_file_cannot_get_its_name_nothing_changes) {
  const TestFolder folder;
  write_file_atomically(folder / kFirst, "older");
  write_file_atomically(folder / "model.safetensors", "older");
  const HuggingFaceWriter writer(folder, three(), {.max_shard_bytes = 56});
  const auto write = [&] {
    writer.write({.config = Json::object()}, [&](size_t tensor, std::span<std::byte> bytes) {
      count(tensor, bytes);
      fs::create_directories(folder / "config.json" / "in the way");
    });
  };
  EXPECT_THAT(fault_of_call(write, ErrorKind::kIo),
              HasSubstr("config.json: cannot be put in place"));
  EXPECT_THAT(names(folder), ElementsAre("config.json", kFirst, "model.safetensors"));
  EXPECT_EQ(read_file(folder / kFirst), "older");
}

}  // namespace
}  // namespace distca
