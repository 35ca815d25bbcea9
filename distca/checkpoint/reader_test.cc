#include "distca/checkpoint/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "distca/base/error.h"
#include "distca/checkpoint/checkpoint_testing.h"

namespace distca {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class checkpoint_reader : public ::testing::Test {
 protected:
  checkpoint_reader() { fs::remove_all(run_); }
  ~checkpoint_reader() override { fs::remove_all(run_); }

  static void expect_values(const CheckpointReader& reader) {
    const auto& tensors = reader.index().tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (const StatePart part : kStateParts) {
        std::vector<float> read(tensors[i].numel(), -1);
        reader.read(static_cast<int64_t>(i), part, std::as_writable_bytes(std::span(read)));
        for (size_t element = 0; element < read.size(); ++element)
          ASSERT_EQ(read[element],
                    value_of(static_cast<int64_t>(i), part, static_cast<int64_t>(element)));
      }
    }
  }
  static void flip_a_bit(const fs::path& file) {
    std::string bytes = read_file(file);
    bytes[bytes.size() - 5] ^= 4;  // in the last piece
    write_file_atomically(file, bytes);
  }
  std::string error_of(const fs::path& folder) {
    try {
      CheckpointReader(folder).check();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
      return error.what();
    }
    return "";
  }

  const fs::path run_ = fs::path(::testing::TempDir()) / fmt::format("distca_reader_{}", getpid());
};

TEST_F(checkpoint_reader, reads_what_any_number_of_ranks_wrote) {
  for (const int owners : {1, 2, 3, 5}) {
    fs::remove_all(run_);
    const CheckpointReader reader(write_checkpoint(run_, 3, owners));
    reader.check();
    expect_values(reader);
  }
}

/// The boxes are such as ranks of tensor parallelism and ZeRO write.
TEST_F(checkpoint_reader, reads_boxes_of_rows_and_columns) {
  CheckpointIndex index{.step = 4, .tensors = some_tensors()};
  const auto add = [&](int64_t tensor, std::vector<Range> box, Range range, int rank) {
    for (const StatePart part : kStateParts) {
      index.pieces.push_back({.tensor = tensor,
                              .part = part,
                              .box = box,
                              .range = range,
                              .file = fmt::format("rank_{}.safetensors", rank)});
    }
  };
  add(0, {{0, 70}, {0, 33}}, {0, 1000}, 0);  // columns, cut within a row
  add(0, {{0, 70}, {0, 33}}, {1000, 70 * 33}, 1);
  add(0, {{0, 70}, {33, 100}}, {0, 70 * 67}, 2);
  add(1, {{0, 50}}, {0, 50}, 0);
  add(1, {{50, 100}}, {0, 50}, 1);
  add(2, {{0, 5}, {0, 100}}, {0, 500}, 0);  // rows
  add(2, {{5, 12}, {0, 100}}, {0, 150}, 1);
  add(2, {{5, 12}, {0, 100}}, {150, 700}, 2);
  write_pieces(run_, index);
  complete_checkpoint(run_, index);
  const fs::path folder = find_checkpoints(run_).newest();
  expect_values(CheckpointReader(folder));
  const auto bytes_of = [&](int64_t tensor, const std::vector<Range>& box, const Range& wanted) {
    const CheckpointReader reader(folder);
    std::vector<float> read(static_cast<size_t>(some_tensors()[tensor].numel()));
    reader.read(tensor, StatePart::kExpAvg, box, {wanted}, std::as_writable_bytes(std::span(read)));
    return reader.bytes_read();
  };
  EXPECT_EQ(bytes_of(0, {{0, 70}, {0, 33}}, {0, 500}), 4 * 1000)
      << "of its columns, the first rows";
  EXPECT_EQ(bytes_of(0, {{0, 70}, {33, 100}}, {0, 70 * 67}), 4 * 70 * 67);
  EXPECT_EQ(bytes_of(0, {{0, 20}, {0, 100}}, {0, 2000}), 4 * (1000 + 70 * 67)) << "of a row, all";
  EXPECT_EQ(bytes_of(1, {{50, 100}}, {10, 11}), 4 * 50);
  EXPECT_EQ(bytes_of(2, {{6, 12}, {0, 100}}, {100, 600}), 4 * 550);
}

TEST_F(checkpoint_reader, only_what_is_wanted_is_read) {
  const fs::path folder = write_checkpoint(run_, 3, /*owners=*/3);  // 4,096, 4,096 and 108 elements
  std::vector<float> read(7000, -1);
  const auto bytes_of = [&](const std::vector<Range>& wanted) {
    const CheckpointReader reader(folder);
    reader.read(0, StatePart::kExpAvg, {{0, 70}, {0, 100}}, wanted,
                std::as_writable_bytes(std::span(read)));
    return reader.bytes_read();
  };
  EXPECT_EQ(bytes_of({}), 0);
  EXPECT_EQ(bytes_of({{0, 10}, {4000, 4096}}), 4 * 4096);
  EXPECT_EQ(read[4095], value_of(0, StatePart::kExpAvg, 4095));
  EXPECT_EQ(read[4096], -1);
  EXPECT_EQ(bytes_of({{6999, 7000}}), 4 * (7000 - 4096));
  EXPECT_EQ(bytes_of({{4095, 4097}}), 4 * 7000);
  flip_a_bit(folder / "rank_1.safetensors");  // in the last tensor
  EXPECT_EQ(bytes_of({{0, 7000}}), 4 * 7000) << "what is not read does not matter";
}

TEST_F(checkpoint_reader, damage_is_named_with_its_file) {
  const fs::path folder = write_checkpoint(run_, 3);
  const fs::path file = folder / "rank_1.safetensors";
  const std::string good = read_file(file);
  std::string flipped = good;
  flipped[good.size() - 5] ^= 4;  // in the last piece
  write_file_atomically(file, flipped);
  EXPECT_THAT(error_of(folder), AllOf(HasSubstr(file.string()), HasSubstr("head.weight.exp_avg_sq"),
                                      HasSubstr("is damaged")));
  write_file_atomically(file, good.substr(0, good.size() - 1));
  EXPECT_THAT(error_of(folder), AllOf(HasSubstr(file.string()), HasSubstr("not a whole")));
  write_file_atomically(file, good.substr(0, 20));
  EXPECT_THAT(error_of(folder), HasSubstr(file.string()));
  fs::remove(file);
  EXPECT_THAT(error_of(folder), AllOf(HasSubstr(file.string()), HasSubstr("cannot be read")));
  fs::copy_file(folder / "rank_0.safetensors", file);
  EXPECT_THAT(error_of(folder), HasSubstr(file.string()));
  write_file_atomically(file, good);
  EXPECT_EQ(error_of(folder), "");
  fs::remove(folder / kIndexFile);
  EXPECT_THAT(error_of(folder), AllOf(HasSubstr(kIndexFile), HasSubstr("cannot be read")));
}

}  // namespace
}  // namespace distca
