#pragma once
// Trainings of a small model by the program, and what they learned. Linux; one thread.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "tests/run_command.h"

namespace distca::testing {

/// What a run learned, without what it measured.
struct Training {
  std::vector<double> losses, norms, validation;
  std::string weights;  // model.safetensors
  int64_t bytes_sent = 0;
};

inline Training read_training(const std::filesystem::path& run) {
  Training training;
  for (const Json& line : read_json_lines(run / "metrics.jsonl")) {
    training.losses.push_back(line.at("loss"));
    training.norms.push_back(line.at("grad_norm"));
    if (line.contains("validation_loss")) training.validation.push_back(line.at("validation_loss"));
    training.bytes_sent += line.at("bytes_sent").get<int64_t>();
  }
  training.weights = read_file(run / "model.safetensors");
  return training;
}

inline void expect_same_bits(const Training& got, const Training& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.validation, want.validation);
  EXPECT_TRUE(got.weights == want.weights) << "other bytes in model.safetensors";
}

inline void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                        double bound, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], bound * std::abs(want[i])) << what << " " << i;
  }
}

class TrainingTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    prefix_ = make_data_set(folder_);
  }

  Training train(const std::string& name, const std::vector<std::string>& more) {
    const Outcome outcome = run_distca(train_arguments(prefix_, folder_ / name, more));
    EXPECT_EQ(outcome.exit_code, 0) << name << "\n" << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err, "") << name;
    return read_training(folder_ / name);
  }

  std::filesystem::path prefix_;
};

}  // namespace distca::testing
