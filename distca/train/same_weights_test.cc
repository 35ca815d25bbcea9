#include "distca/train/same_weights.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "distca/base/error.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/batch/test_folder.h"
#include "distca/comm/thread_group.h"
#include "distca/model/weight_table.h"
#include "distca/train/start_weights.h"
#include "distca/train/trainer.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Without layers: the embedding, the last norm and the head, if it is not the embedding.
LlamaConfig ends_only(bool tied) {
  LlamaConfig model;
  model.num_hidden_layers = 0;
  model.tie_word_embeddings = tied;
  return model;
}

TEST(same_weights, ranks_that_differ_in_a_bit_are_named_on_all) {
  const RunGrid run{.grid = {.replicas = 4}, .layers = {{0, 0}}};
  const LlamaConfig model = ends_only(/*tied=*/true);
  run_ranks(4, {.timeout_s = 300}, [&](Communicator& comm) {
    std::vector<at::Tensor> weights = {at::ones({3, 5}), at::arange(7, at::kFloat)};
    EXPECT_TRUE(ranks_with_other_weights(comm, run, model, weights, "test").empty());
    if (comm.rank() == 1) weights[1][2] += 1e-6;
    if (comm.rank() == 3) weights[0].mul_(-1);
    const OtherRanks others = ranks_with_other_weights(comm, run, model, weights, "test");
    EXPECT_THAT(others.replicas, ElementsAre(1, 3));
    EXPECT_THAT(others.copies, IsEmpty());
  });
}

TEST(same_weights, ranks_that_read_other_models_are_named_on_all_whatever_they_read_of_them) {
  Config config;
  config.model_from = "model";
  const auto fault = [&](std::vector<uint64_t> fingerprints) {
    std::string text;
    run_ranks(3, {.timeout_s = 300}, [&](Communicator& comm) {
      try {
        check_same_folder(comm, config, fingerprints[comm.rank()]);
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), 2);
        if (comm.rank() == 2) text = error.what();
      }
    });
    return text;
  };
  EXPECT_EQ(fault({0, 0, 0}), "");
  EXPECT_EQ(fault({5, 5, 0}), "") << "the last is a dedicated server";
  EXPECT_EQ(fault({0, 5, 7}),
            "rank 2 reads other weights from model than rank 1: give all ranks the same files");
}

TEST(same_weights, in_a_pipeline_each_rank_is_compared_with_the_first_of_its_stage) {
  const RunGrid run{.grid = {.stages = 2, .replicas = 2}, .layers = {{0, 0}, {0, 0}}};
  run_ranks(4, {.timeout_s = 300}, [&](Communicator& comm) {
    const int stage = comm.rank() / 2;  // the first has the embedding, the last the norm and head
    std::vector<at::Tensor> weights(1 + stage);
    for (at::Tensor& weight : weights) weight = at::full({3, 5}, stage);
    const auto others = [&] {
      return ranks_with_other_weights(comm, run, ends_only(/*tied=*/false), weights, "test");
    };
    EXPECT_TRUE(others().empty()) << "stages are not compared";
    if (comm.rank() == 3) weights[0][1][2] += 1;
    EXPECT_THAT(others().replicas, ElementsAre(3));
    if (comm.rank() == 0) weights[0].mul_(-1).sub_(1);
    EXPECT_THAT(others().replicas, ElementsAre(1, 3));
    EXPECT_THAT(others().copies, IsEmpty());
  });
  const auto one = name_others({.replicas = {3}, .copies = {}}, run),
             two = name_others({.replicas = {1, 3}, .copies = {2, 3}}, run);
  EXPECT_EQ(one.ranks, "rank 3 (stage 1, replica 1)");
  EXPECT_EQ(one.firsts, "rank 2 (stage 1, replica 0)");
  EXPECT_EQ(two.ranks, "rank 1 (stage 0, replica 1), rank 3 (stage 1, replica 1)");
  EXPECT_EQ(two.firsts, "rank 0 (stage 0, replica 0), rank 2 (stage 1, replica 0)");
}

TEST(same_weights, the_two_copies_of_a_tied_embedding_are_compared) {
  const RunGrid run{.grid = {.stages = 2, .replicas = 2}, .layers = {{0, 0}, {0, 0}}};
  run_ranks(4, {.timeout_s = 300}, [&](Communicator& comm) {
    const int stage = comm.rank() / 2;
    std::vector<at::Tensor> weights;
    if (stage == 1) weights.push_back(at::zeros({5}));  // the last norm
    weights.push_back(at::ones({3, 5}));
    const auto others = [&] {
      return ranks_with_other_weights(comm, run, ends_only(/*tied=*/true), weights, "test");
    };
    EXPECT_TRUE(others().empty());
    if (stage == 1) weights[0][2] += 1;
    EXPECT_TRUE(others().empty()) << "the norm is no copy";
    if (comm.rank() == 3) weights[1][2][4] += 1e-6;
    EXPECT_THAT(others().replicas, ElementsAre(3));
    EXPECT_THAT(others().copies, ElementsAre(3));
    if (comm.rank() == 2) weights[1][2][4] += 1e-6;
    EXPECT_THAT(others().replicas, IsEmpty());
    EXPECT_THAT(others().copies, ElementsAre(2, 3));
    if (stage == 0) weights[0][2][4] += 1e-6;
    EXPECT_TRUE(others().empty());
  });
  const OtherWeights named = name_others({.replicas = {}, .copies = {2, 3}}, run);
  EXPECT_EQ(named.ranks, "rank 2 (stage 1, replica 0), rank 3 (stage 1, replica 1)");
  EXPECT_EQ(named.firsts, "rank 0 (stage 0, replica 0)");
  EXPECT_EQ(named.part, " of the tied embedding");
}

TEST(same_weights, what_tensor_parallelism_does_not_divide_is_compared_within_a_server) {
  const RunGrid run{.grid = {.replicas = 2}, .layers = {{0, 1}}, .tensor = 4};
  const LlamaConfig model{
      .num_hidden_layers = 1, .num_attention_heads = 4, .num_key_value_heads = 2};
  run_ranks(8, {.timeout_s = 300}, [&](Communicator& comm) {
    const std::vector<Weight> table = weight_table(model, run.stage_of(comm.rank()));
    std::vector<at::Tensor> weights;
    for (const Weight& weight : table)  // each part has values of its own
      weights.push_back(at::full(weight.held_shape(), static_cast<double>(weight.holders.begin)));
    const auto change = [&](std::string_view name) {
      for (size_t i = 0; i < table.size(); ++i) {
        if (table[i].name.find(name) != std::string::npos) weights[i].add_(1);
      }
    };
    const auto others = [&] { return ranks_with_other_weights(comm, run, model, weights, "test"); };
    EXPECT_TRUE(others().empty()) << "parts are not compared";
    if (comm.rank() % 4 == 3) change("v_proj");
    EXPECT_THAT(others().partners, ElementsAre(std::pair(3, 2), std::pair(7, 6)));
    EXPECT_THAT(others().replicas, IsEmpty());
    if (comm.rank() % 4 == 1) change("post_attention_layernorm");
    EXPECT_THAT(others().partners,
                ElementsAre(std::pair(1, 0), std::pair(3, 2), std::pair(5, 4), std::pair(7, 6)));
    if (comm.rank() == 6) change("gate_proj");
    EXPECT_THAT(others().replicas, ElementsAre(6));
  });
  const OtherWeights named =
      name_others({.replicas = {}, .copies = {}, .partners = {{5, 4}, {7, 6}}}, run);
  EXPECT_EQ(named.ranks, "rank 5 (replica 1, tensor 1), rank 7 (replica 1, tensor 3)");
  EXPECT_EQ(named.firsts, "rank 4 (replica 1, tensor 0), rank 6 (replica 1, tensor 2)");
  EXPECT_EQ(named.part, " that ranks of a server share");
}

TEST(same_weights, those_that_are_no_numbers_are_counted) {
  std::vector<at::Tensor> weights = {at::ones({3, 5}), at::zeros({7}).set_requires_grad(true)};
  EXPECT_EQ(num_not_finite(weights), 0);
  weights[0][1][2] = std::numeric_limits<float>::infinity();
  weights[0][2][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(num_not_finite(weights), 2);
}

/// Hands on what a group does, but turns the signs of the sums of gradients that are received.
class FaultyMachine final : public Communicator {
 public:
  explicit FaultyMachine(Communicator& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  void set_step(int64_t step) override { comm_.set_step(step); }
  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    auto pending = comm_.exchange(sends, receives, operation);
    if (operation.find("grad_gather") == std::string_view::npos) return pending;
    return std::make_unique<Turned>(std::move(pending), receives);
  }

 private:
  class Turned final : public PendingExchange {
   public:
    Turned(std::unique_ptr<PendingExchange> pending, std::span<const Message> receives)
        : pending_(std::move(pending)), receives_(receives.begin(), receives.end()) {}
    void wait_received() override {
      pending_->wait_received();
      for (const Message& message : receives_) {
        for (int64_t byte = 3; byte < message.bytes; byte += 4)
          message.data[byte] ^= std::byte{128};
      }
      receives_.clear();
    }
    void wait() override {
      wait_received();
      pending_->wait();
    }

   private:
    std::unique_ptr<PendingExchange> pending_;
    std::vector<Message> receives_;
  };
  Communicator& comm_;
};

class SameWeightsTest : public FolderTest {
 protected:
  /// Trains on two ranks, of which rank 1 is faulty, and expects an error with these words. Rank 0
  /// saves what it has.
  void expect_drift(const std::vector<std::string>& more, const std::string& words) {
    IndexedDatasetWriter writer(folder_ / "set", TokenType::kUint8);
    for (int i = 0; i < 8; ++i) writer.add_document(std::vector<int32_t>(100, i));
    writer.finish();
    std::vector<std::string> overrides = {"data.prefix=" + (folder_ / "set").string(),
                                          "train.steps=3",
                                          "train.output_dir=" + (folder_ / "run").string(),
                                          "batch.nano_batch_tokens=64",
                                          "model.hidden_size=16",
                                          "model.intermediate_size=16",
                                          "model.num_hidden_layers=2",
                                          "model.num_attention_heads=2",
                                          "model.num_key_value_heads=1",
                                          "model.head_dim=8"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const Config config = load_config("", overrides);
    try {
      run_ranks(2, {.timeout_s = 300}, [&](Communicator& comm) {
        FaultyMachine faulty(comm);
        RunState state(config.train.output_dir, config.train.steps);
        train(config, comm.rank() == 1 ? faulty : comm, state);
      });
      FAIL() << "unseen";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 3);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(words), HasSubstr((folder_ / "run").string())));
    }
    EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / "model.safetensors"));
  }
};

TEST_F(SameWeightsTest, replicas_that_drift_apart_are_named_and_the_first_is_saved) {
  expect_drift({}, "rank 1 ended with other weights than rank 0");
}

TEST_F(SameWeightsTest, copies_of_a_tied_embedding_that_drift_apart_are_named) {
  // Several blocks (weight_table.h): each rank has to receive some of the sum.
  expect_drift({"parallel.pipeline_model_parallel_size=2", "model.tie_word_embeddings=true",
                "model.vocab_size=1024"},
               "rank 1 (stage 1, replica 0) ended with other weights of the tied embedding than "
               "rank 0 (stage 0, replica 0): from some step on each trained a model of its own; "
               "what the first replicas hold is saved in ");
}

}  // namespace
}  // namespace distca
