#pragma once
// Trainings of a small model by the program, and what they learned. Linux; one thread.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "tests/run_command.h"

namespace distca::testing {

/// The results of a run: losses, gradient norms, weights and bytes sent, without times.
struct Training {
  std::vector<double> losses, norms, validation;
  std::string weights;  // model.safetensors
  int64_t bytes_sent = 0;
};

inline void expect_same_bits(const Training& got, const Training& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.validation, want.validation);
  EXPECT_TRUE(got.weights == want.weights) << "other bytes in model.safetensors";
}

inline void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                        double bound, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], bound * std::abs(want[i])) << what << " " << i;
  }
}

/// DESIGN rule 1, in fp64.
inline void expect_same_result(const Training& got, const Training& want, const std::string& name) {
  expect_near(got.losses, want.losses, 1e-10, name + ": loss");
  expect_near(got.norms, want.norms, 1e-10, name + ": gradient norm");
  expect_near(got.validation, want.validation, 1e-10, name + ": validation loss");
}

/// A data set, and runs in folders next to it.
class TrainingTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    prefix_ = make_data_set(folder_);
    run_ = folder_ / "run";
  }
  void TearDown() override {
    program_.reset();  // it writes to the folder
    FolderTest::TearDown();
  }

  /// The arguments of a run into a folder of this name.
  Words arguments(const Words& more = {}, const std::string& name = "run") const {
    return train_arguments(prefix_, folder_ / name, more);
  }
  std::vector<Json> metrics(const std::string& name = "run") const {
    return read_json_lines(folder_ / name / "metrics.jsonl");
  }
  Training read_training(const std::string& name) const {
    Training training;
    for (const Json& line : metrics(name)) {
      training.losses.push_back(line.at("loss"));
      training.norms.push_back(line.at("grad_norm"));
      if (line.contains("validation_loss"))
        training.validation.push_back(line.at("validation_loss"));
      training.bytes_sent += line.at("bytes_sent").get<int64_t>();
    }
    training.weights = read_file(folder_ / name / "model.safetensors");
    return training;
  }
  Training train(const std::string& name, const Words& more) const {
    EXPECT_EQ(succeed(arguments(more, name)).err, "") << name;
    return read_training(name);
  }

  std::filesystem::path prefix_, run_;
  std::optional<Program> program_;
};

}  // namespace distca::testing
