// ZeRO-1 (parallel.use_distributed_optimizer): its bits are those of plain data parallelism, and
// checkpoints of either go on as the other.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/checkpoint_runs.h"

namespace distca::testing {
namespace {

class DistributedOptimizer : public CheckpointTest {
 protected:
  /// Several buckets, and a norm that is clipped in every step.
  static Words words(const std::string& workers, bool distributed, const std::string& dtype) {
    return {"model.dtype=" + dtype,
            "train.steps=6",
            "checkpoint.every_steps=2",
            "checkpoint.keep_last=0",
            "optimizer.max_grad_norm=0.5",
            "train.validation_every=0",
            distributed ? "parallel.bucket_mb=0.02" : "parallel.bucket_mb=0.05",
            fmt::format("parallel.use_distributed_optimizer={}", distributed),
            "--workers",
            workers};
  }
  Training resume_from(const std::string& from, int64_t step, const std::string& name,
                       const Words& more) const {
    succeed(arguments(joined(more, {"--resume", checkpoint(step, from)}), name));
    return read_training(name);
  }
};

/// The last of a run's steps.
std::vector<double> tail(const std::vector<double>& all, size_t count) {
  return {all.end() - static_cast<std::ptrdiff_t>(count), all.end()};
}

TEST_F(DistributedOptimizer, has_the_bits_of_plain_data_parallelism) {
  for (const auto& [workers, dtype] :
       {std::pair{"2", "bfloat16"}, {"3", "float32"}, {"4", "bfloat16"}}) {
    SCOPED_TRACE(workers);
    const std::string of = workers;
    const Training plain = train("plain" + of, words(of, false, dtype));
    const Training shared = train("shared" + of, words(of, true, dtype));
    expect_same_bits(shared, plain);
    EXPECT_GT(*std::ranges::min_element(plain.norms), 0.5) << "clipping is active";
    // Moments and, in bf16, main params in fp32: each worker has its share.
    const auto most = [&](const std::string& name) {
      return std::ranges::max(metrics(name)[0].at("optimizer_bytes").get<std::vector<int64_t>>());
    };
    const double share = std::string(dtype) == "bfloat16" ? 1.5 : 1;
    const double even = share * static_cast<double>(most("plain" + of)) / std::stoi(of);
    EXPECT_NEAR(static_cast<double>(most("shared" + of)), even, 4096 * 12);
  }
}

TEST_F(DistributedOptimizer, has_them_with_tied_embeddings_servers_recomputation_and_plain_saves) {
  const std::pair<std::string, Words> rows[] = {
      {"tied", {"model.tie_word_embeddings=true"}},
      {"served",
       {"servers.dedicated=1", "batch.nano_batches=3", "train.recompute=full",
        "checkpoint.async=false"}}};
  for (const auto& [name, row] : rows) {
    SCOPED_TRACE(name);
    const Words distributed = joined(words("2", true, "bfloat16"), row);
    const Training plain = train(name, joined(words("2", false, "bfloat16"), row));
    expect_same_bits(train(name + " shared", distributed), plain);
    const Training resumed = resume_from(name + " shared", 4, name + " resumed", distributed);
    EXPECT_EQ(resumed.norms, tail(plain.norms, 2));
    EXPECT_TRUE(resumed.weights == plain.weights);
  }
}

TEST_F(DistributedOptimizer, checkpoints_go_on_with_it_and_without_bit_for_bit) {
  const Training straight = train("straight", words("2", false, "bfloat16"));
  const Training shared = resume_from("straight", 2, "shared", words("2", true, "bfloat16"));
  EXPECT_EQ(shared.losses, tail(straight.losses, 4));
  EXPECT_TRUE(shared.weights == straight.weights);
  const Training plain = resume_from("shared", 4, "plain", words("2", false, "bfloat16"));
  EXPECT_EQ(plain.losses, tail(straight.losses, 2));
  EXPECT_EQ(plain.norms, tail(straight.norms, 2));
  EXPECT_TRUE(plain.weights == straight.weights);
}

TEST_F(DistributedOptimizer, other_numbers_of_workers_go_on_to_rounding) {
  const Training straight = train("straight", words("2", true, "float64"));
  const Training three = resume_from("straight", 2, "three", words("3", true, "float64"));
  expect_near(three.losses, tail(straight.losses, 4), 1e-10, "three workers");
  const Training one = resume_from("three", 4, "one", words("1", false, "float64"));
  expect_near(one.losses, tail(straight.losses, 2), 1e-10, "one worker");
}

}  // namespace
}  // namespace distca::testing
