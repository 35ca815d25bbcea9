#include "distca/checkpoint/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "distca/base/error.h"
#include "distca/base/test_time.h"
#include "distca/checkpoint/checkpoint_testing.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

CheckpointIndex example() {
  CheckpointIndex index{.step = 7,
                        .updates = 6,
                        .run_id = "0123456789abcdef",
                        .config = {{"train.steps", "10"}, {"data.prefix", "data/\"mine\""}},
                        .machine = {{"workers", "2"}},
                        .data = "40 documents",
                        .trainer = {{"skipped", 1}},
                        .hugging_face = {{"model_type", "llama"}},
                        .tensors = some_tensors(),
                        .files = {{"rank_0.safetensors", 100}, {"rank_1.safetensors", 90}}};
  for (int owner = 0; owner < 2; ++owner) {
    for (StoredPiece piece :
         owned_pieces(index.tensors, owner, 2, fmt::format("rank_{}.safetensors", owner))) {
      piece.hash = 0xfedcba9876543210 + index.pieces.size();
      index.pieces.push_back(piece);
    }
  }
  return index;
}

/// The message of the Error that reading this text throws.
std::string error_of(const std::string& text) {
  try {
    parse_checkpoint_index(text, "checkpoint.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(checkpoint_index, what_was_written_is_read) {
  const CheckpointIndex index = example();
  const std::string text = canonical_json(to_json(index));
  const CheckpointIndex read = parse_checkpoint_index(text, "checkpoint.json");
  EXPECT_EQ(canonical_json(to_json(read)), text);
  EXPECT_EQ(read.pieces, index.pieces);
  EXPECT_EQ(read.tensors, index.tensors);
  EXPECT_EQ(read.config, index.config);
  check_coverage(read, "checkpoint.json");
}

TEST(checkpoint_index, owners_divide_all_elements_evenly) {
  const std::vector<StoredTensor> tensors = some_tensors();  // 8,300 elements
  for (const int owners : {1, 2, 3, 7}) {
    CheckpointIndex index{.tensors = tensors};
    std::vector<int64_t> owned(owners);
    for (int owner = 0; owner < owners; ++owner) {
      for (const StoredPiece& piece : owned_pieces(tensors, owner, owners, "file")) {
        index.pieces.push_back(piece);
        if (piece.part == StatePart::kWeight) owned[owner] += piece.range.size();
      }
    }
    check_coverage(index, "index");
    EXPECT_EQ(std::accumulate(owned.begin(), owned.end(), int64_t{0}), 8300);
    for (const int64_t elements : owned)
      EXPECT_LE(elements, round_up(ceil_div(8300, owners), 4096));
  }
}

TEST(checkpoint_index, names_tell_pieces_of_a_file_apart) {
  const CheckpointIndex index{.tensors = some_tensors()};
  const auto name = [&](StatePart part, std::vector<Range> box, Range range) {
    return stored_name(index, {.tensor = 0, .part = part, .box = std::move(box), .range = range});
  };
  EXPECT_EQ(name(StatePart::kWeight, {{0, 70}, {0, 100}}, {0, 7000}), "embed.weight");
  EXPECT_EQ(name(StatePart::kExpAvg, {{0, 70}, {0, 100}}, {0, 4096}),
            "embed.weight.exp_avg(0:4096)");
  EXPECT_EQ(name(StatePart::kExpAvgSq, {{0, 70}, {50, 100}}, {0, 3500}),
            "embed.weight.exp_avg_sq[0:70,50:100]");
}

/// Pieces of every kind that ranks of ZeRO write, and those of tensor parallelism will.
TEST(checkpoint_index, boxes_of_rows_and_columns_cover_a_tensor_together) {
  CheckpointIndex index{.tensors = {{.name = "w", .shape = {6, 10}}}};
  const auto add = [&](Range rows, Range columns, Range range) {
    for (const StatePart part : kStateParts)
      index.pieces.push_back({.part = part, .box = {rows, columns}, .range = range, .file = "f"});
  };
  add({0, 6}, {0, 4}, {0, 24});
  add({0, 2}, {4, 10}, {0, 5});
  add({0, 2}, {4, 10}, {5, 12});
  const auto error = [&] {
    try {
      check_coverage(index, "checkpoint.json");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(error(), HasSubstr("checkpoint.json: w (weight): 24 of 60 elements are in no piece"));
  add({2, 6}, {4, 10}, {0, 20});
  EXPECT_THAT(error(), HasSubstr("of box [2:6,4:10], element 20 is in no piece"));
  add({2, 6}, {4, 10}, {20, 24});
  EXPECT_EQ(error(), "");
  add({2, 6}, {4, 10}, {23, 24});
  EXPECT_THAT(error(), HasSubstr("element 23 is in two pieces"));
  index.pieces.resize(index.pieces.size() - kStateParts.size());
  add({5, 6}, {9, 10}, {0, 1});
  EXPECT_THAT(error(), HasSubstr("boxes [2:6,4:10] and [5:6,9:10] overlap"));
}

/// The boxes are such as ranks that divide rows and columns would write, without and with a fault.
TEST(checkpoint_index, boxes_are_compared_in_time_in_proportion_to_their_number) {
  const auto index_of = [](int64_t sides) {
    CheckpointIndex index{.tensors = {{.name = "w", .shape = {sides, sides}}}};
    for (int64_t at = 0; at < sides * sides; ++at) {
      const int64_t row = at / sides, column = at % sides;
      for (const StatePart part : kStateParts)
        index.pieces.push_back(
            {.part = part, .box = {{row, row + 1}, {column, column + 1}}, .range = {0, 1}});
    }
    return index;
  };
  const auto check = [](const CheckpointIndex& index) { check_coverage(index, "index"); };
  const auto check_faulty = [](CheckpointIndex index) {
    const int64_t sides = index.tensors[0].shape[0];
    index.pieces.push_back({.part = StatePart::kExpAvgSq,
                            .box = {{sides - 1, sides}, {0, sides}},
                            .range = {0, sides}});
    EXPECT_THROW(check_coverage(index, "index"), Error);
  };
  const CheckpointIndex few = index_of(32), many = index_of(128);
  // 16 times as many boxes; in time by the square, it would be 256 times.
  EXPECT_TRUE(testing::takes_less_than(
      64, [&] { check(many); }, [&] { check(few); }));
  EXPECT_TRUE(testing::takes_less_than(
      64, [&] { check_faulty(many); }, [&] { check_faulty(few); }));
}

TEST(checkpoint_index, faults_are_named_with_their_place) {
  const Json good = to_json(example());
  EXPECT_THAT(error_of("{}"), HasSubstr("a checkpoint's index of distca"));
  EXPECT_THAT(error_of("{"), HasSubstr("not JSON"));
  const auto with = [&](const std::string& pointer, const Json& value) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    return error_of(json.dump());
  };
  EXPECT_THAT(with("/version", 2), HasSubstr("version must be 1, the one that this distca reads"));
  EXPECT_THAT(with("/step", 0), HasSubstr("step must be"));
  EXPECT_THAT(with("/config/train.steps", 3), HasSubstr("config.train.steps must be a string"));
  EXPECT_THAT(with("/tensors/0/shape", {1, 2, 3}),
              HasSubstr("tensors[0].shape must be one or two"));
  EXPECT_THAT(with("/tensors/0/shape", {int64_t{1} << 40, int64_t{1} << 40}),
              HasSubstr("of at most 2^48 elements"));
  EXPECT_THAT(with("/tensors/0/type", "int8"), HasSubstr("float64, float32 or bfloat16"));
  EXPECT_THAT(with("/pieces/1/tensor", 3), HasSubstr("pieces[1].tensor must be"));
  EXPECT_THAT(with("/pieces/1/part", "momentum"), HasSubstr("weight, exp_avg or exp_avg_sq"));
  EXPECT_THAT(with("/pieces/1/box", Json::array()), HasSubstr("as many sides as the tensor has"));
  EXPECT_THAT(with("/pieces/1/box/0", {0, 71}), HasSubstr("pieces[1].box[0][1] must be"));
  EXPECT_THAT(with("/pieces/1/range", {5, 5}), HasSubstr("a begin and a later end"));
  EXPECT_THAT(with("/pieces/1/file", "rank_2.safetensors"), HasSubstr("one of the files"));
  EXPECT_THAT(with("/pieces/1/hash", "12"), HasSubstr("16 hexadecimal digits"));
  EXPECT_THAT(with("/files", {{"../weights", 3}}), HasSubstr("a file in the checkpoint's folder"));
  for (const char* key : {"step", "pieces", "config", "machine", "hugging_face", "data", "files"}) {
    Json json = good;
    json.erase(key);
    EXPECT_EQ(error_of(json.dump()), fmt::format("checkpoint.json: {} is missing", key));
  }
}

TEST(checkpoint_index, a_name_with_a_nul_is_that_name) {
  const std::string name("train.steps\0x", 13);
  CheckpointIndex index = example();
  index.config[name] = "11";
  const std::string text = canonical_json(to_json(index));
  EXPECT_EQ(parse_checkpoint_index(text, "checkpoint.json").config, index.config);
  index.files[name] = 1;
  EXPECT_THAT(error_of(canonical_json(to_json(index))),
              HasSubstr("a file in the checkpoint's folder"));
}

}  // namespace
}  // namespace distca
