#include "distca/train/verify.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "distca/base/error.h"
#include "distca/base/random.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/batch/test_folder.h"
#include "distca/model/llama.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class VerifyTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    Random random(5);
    IndexedDatasetWriter writer(folder_ / "data", TokenType::kUint8);
    for (const int64_t length : {350, 90, 1, 150, 65, 211}) {
      std::vector<int32_t> tokens(length);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(31));
      writer.add_document(tokens);
    }
    writer.finish();
    config_.data.prefix = folder_ / "data";
    config_.data.validation_fraction = 0;
    config_.batch = {
        .nano_batch_tokens = 300, .nano_batches = 2, .max_document_tokens = 300, .seed = 1};
    LlamaConfig& model = config_.model;
    model.vocab_size = 31;
    model.hidden_size = 32;
    model.intermediate_size = 40;
    model.num_hidden_layers = 2;
    model.num_attention_heads = 4;
    model.num_key_value_heads = 2;
    model.head_dim = 8;
    model.initializer_range = 0.2;  // attention far from uniform: a wrong mask shows
  }

  Verification check(int workers, const VerifyHooks& hooks = {}) const {
    return verify(verify_config(config_, ScalarType::kFloat64), workers, hooks);
  }

  static std::vector<std::string> names_beyond(const Verification& seen) {
    std::vector<std::string> names;
    for (const Difference& gradient : seen.gradients) {
      if (gradient.beyond()) names.push_back(gradient.name);
    }
    return names;
  }

  Config config_;
};

/// Changes one element of a weight's gradient on `rank` by 1e-6 of the largest one there.
VerifyHooks::Hook spoil(int rank, size_t weight) {
  return [=](int at_rank, const std::vector<at::Tensor>& parameters) {
    if (at_rank != rank) return;
    const at::Tensor gradient = parameters[weight].grad().view(-1);
    const double largest = gradient.abs().max().item<double>();
    EXPECT_GT(largest, 0);
    gradient[static_cast<int64_t>(weight) % gradient.numel()] += 1e-6 * largest;
  };
}

TEST_F(VerifyTest, tells_how_far_each_side_is) {
  std::vector<std::string> sides;
  double last = 0;
  check(2, {.progress = [&](const std::string& side, double share) {
          if (sides.empty() || sides.back() != side) {
            EXPECT_EQ(last, sides.empty() ? 0 : 1);
            sides.push_back(side);
            last = 0;
          }
          EXPECT_GT(share, last);
          last = share;
        }});
  EXPECT_THAT(sides, ElementsAre("2 workers", "1 worker"));
  EXPECT_EQ(last, 1);
}

TEST_F(VerifyTest, a_gradient_spoilt_on_one_rank_is_named_and_nothing_else_is) {
  constexpr std::array kWorkers = {2, 3, 1, 4, 7};
  size_t turn = 0;
  for (const char* scheduler :
       {"balanced", "greedy", "local", "per-document-cp", "wlb", "karmarkar-karp", "wlb-cp2"}) {
    for (const OverlapName& overlap : kOverlaps) {
      config_.plan.scheduler = scheduler;
      config_.train.overlap = overlap.overlap;
      const int workers = kWorkers[turn % kWorkers.size()];
      SCOPED_TRACE(fmt::format("{} workers, {}, {}", workers, scheduler, overlap.name));
      const Verification good = check(workers);
      EXPECT_EQ(fault_of(good), "");
      EXPECT_THAT(names_beyond(good), IsEmpty());
      EXPECT_TRUE(good.other_ranks.empty());
      const size_t weight = turn++ % good.gradients.size();
      // The last worker of many may have no token, hence no gradient.
      const int rank = workers > 4 ? 0 : workers - 1;
      const Verification spoilt = check(workers, {.before_sum = spoil(rank, weight)});
      const std::string& name = good.gradients[weight].name;
      EXPECT_THAT(names_beyond(spoilt), ElementsAre(name));
      EXPECT_THAT(fault_of(spoilt),
                  AllOf(StartsWith(fmt::format("the gradient of {} on {} worker", name, workers)),
                        HasSubstr(" of its largest value (bound 1e-10)")));
      EXPECT_LT(spoilt.gradients[weight].value, 2e-6);
      EXPECT_EQ(spoilt.loss, good.loss);
    }
  }
}

TEST_F(VerifyTest, servers_keys_and_split_kv_are_those_of_the_run) {
  config_.servers.dedicated = 1;
  config_.plan.split_kv = true;
  config_.plan.tolerance = {.share = 0};
  config_.exchange.keys = Config::Exchange::Keys::kRedispatch;
  for (const bool in_place : {true, false}) {
    config_.servers.in_place = in_place;
    const Verification good = check(2);
    EXPECT_EQ(fault_of(good), "");
    EXPECT_TRUE(good.redispatched);
    EXPECT_THAT(fault_of(check(2, {.before_sum = spoil(1, 3)})),
                StartsWith("the gradient of " + good.gradients[3].name + " on 2 workers differs "));
  }
  EXPECT_EQ(config_.model.dtype, ScalarType::kFloat32) << "the run's own stays";
}

TEST_F(VerifyTest, says_what_was_compared) {
  const Verification seen = check(3);
  EXPECT_EQ(seen.num_workers, 3);
  EXPECT_EQ(seen.nano_batches, 2);
  EXPECT_EQ(seen.tokens, 600);
  EXPECT_GT(seen.documents, 2);
  EXPECT_GE(seen.targets, seen.tokens - seen.documents);
  EXPECT_LT(seen.targets, seen.tokens);
  EXPECT_FALSE(seen.redispatched);
  EXPECT_EQ(seen.kernel, "aten-cpu");
  EXPECT_EQ(seen.bound, 1e-10);
  EXPECT_NEAR(seen.loss, seen.loss_of_one, 1e-10 * seen.loss);
  EXPECT_GT(seen.loss, 3);  // about ln 31
  EXPECT_EQ(seen.gradients.size(), 21u);
  EXPECT_EQ(seen.gradients[0].name, "model.embed_tokens.weight");
  EXPECT_GT(seen.seconds, 0);
  EXPECT_GT(seen.seconds_of_one, 0);
}

TEST_F(VerifyTest, the_runs_own_type_and_kernel_have_the_formats_bound) {
  config_.attention.kernel = KernelChoice::kCpu;
  for (const ScalarType dtype : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    config_.model.dtype = dtype;
    const Verification seen = verify(verify_config(config_, dtype), 3);
    EXPECT_EQ(fault_of(seen), "");
    EXPECT_THAT(seen.kernel, StartsWith("cpu-"));
    EXPECT_GT(seen.bound, 1e-6);
    double largest = 0;
    for (const Difference& gradient : seen.gradients) largest = std::max(largest, gradient.value);
    EXPECT_GT(largest, 1e-10) << "not computed in fp64";
  }
}

TEST_F(VerifyTest, a_check_in_fp64_plans_as_the_run_does_and_never_clips) {
  config_.model.dtype = ScalarType::kBFloat16;
  config_.plan.max_memory_gib = 3;
  config_.plan.bandwidth_mb_per_s = 1000;
  config_.attention.kernel = KernelChoice::kCpu;
  config_.train.trace = "trace.json";
  config_.train.steps = 0;
  const Config wide = verify_config(config_, ScalarType::kFloat64);
  EXPECT_EQ(wide.plan.max_memory_gib, 12);
  EXPECT_EQ(wide.plan.bandwidth_mb_per_s, 4000);
  EXPECT_EQ(wide.attention.kernel, KernelChoice::kAuto);
  EXPECT_EQ(wide.optimizer.max_grad_norm, 0);
  EXPECT_EQ(wide.train.trace, "");
  EXPECT_EQ(wide.train.steps, 1);
  const Config own = verify_config(config_, config_.model.dtype);
  EXPECT_EQ(own.plan.max_memory_gib, 3);
  EXPECT_EQ(own.attention.kernel, KernelChoice::kCpu);
  config_.attention.kernel = KernelChoice::kReference;
  EXPECT_EQ(verify_config(config_, ScalarType::kFloat64).attention.kernel,
            KernelChoice::kReference);
}

TEST_F(VerifyTest, a_worker_with_other_sums_is_named) {
  const auto change = [](int rank, const std::vector<at::Tensor>& parameters) {
    if (rank > 0) parameters[4].grad().view(-1)[0].mul_(1 + 1e-15);
  };
  const Verification seen = check(3, {.after_sum = change});
  EXPECT_THAT(seen.other_ranks.replicas, ElementsAre(1, 2));
  EXPECT_EQ(fault_of(seen),
            "ranks 1, 2 summed the gradients of 3 workers to other bits than rank 0: replicas "
            "would drift apart");
  EXPECT_THAT(names_beyond(seen), IsEmpty());
}

TEST_F(VerifyTest, copies_of_a_tied_embedding_have_the_same_gradient_and_are_named_if_not) {
  config_.model.tie_word_embeddings = true;
  config_.parallel.pipeline_model_parallel_size = 2;
  EXPECT_EQ(fault_of(check(4)), "");
  const auto change = [](int rank, const std::vector<at::Tensor>& parameters) {
    if (rank >= 2) parameters.back().grad().view(-1)[0].add_(1e-15);
  };
  const Verification seen = check(4, {.after_sum = change});
  EXPECT_THAT(seen.other_ranks.copies, ElementsAre(2, 3));
  EXPECT_EQ(
      fault_of(seen),
      "rank 2 (stage 1, replica 0), rank 3 (stage 1, replica 1) summed the gradients of the "
      "tied embedding of 4 workers to other bits than rank 0 (stage 0, replica 0): its copies "
      "would drift apart");
}

TEST_F(VerifyTest, many_wrong_gradients_are_counted_and_the_worst_is_named) {
  const auto change = [](int, const std::vector<at::Tensor>& parameters) {
    for (const size_t weight : {2, 5, 6}) parameters[weight].grad().mul_(weight == 5 ? 2 : 1.5);
  };
  const Verification seen = check(2, {.before_sum = change});
  EXPECT_EQ(fault_of(seen), fmt::format("the gradient of {} on 2 workers differs from one worker's "
                                        "by 1.0e+00 of its largest value (bound 1e-10); 3 of 21 "
                                        "gradients are beyond their bounds",
                                        seen.gradients[5].name));
}

TEST_F(VerifyTest, what_is_not_a_number_is_a_fault) {
  const auto change = [](int rank, const std::vector<at::Tensor>& parameters) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    if (rank == 1) parameters[7].grad().view(-1)[0].fill_(nan);
  };
  const Verification seen = check(2, {.before_sum = change});
  EXPECT_THAT(fault_of(seen), AllOf(HasSubstr(seen.gradients[7].name), HasSubstr("by nan of its")));
  config_.model.initializer_range = 1e200;
  try {
    check(2);
    FAIL() << "not thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTraining);
    EXPECT_THAT(error.what(), HasSubstr("not finite, so there is nothing to compare; lower "
                                        "model.initializer_range (now 1e+200)"));
  }
}

TEST_F(VerifyTest, a_gradient_that_is_zero_on_one_worker_is_compared_absolutely) {
  config_.model.initializer_range = 0;
  const Verification good = check(2);
  EXPECT_EQ(fault_of(good), "");
  for (const Difference& gradient : good.gradients) {
    EXPECT_TRUE(gradient.zero);
    EXPECT_DOUBLE_EQ(gradient.bound, 1e-12);
  }
  const auto change = [](int rank, const std::vector<at::Tensor>& parameters) {
    if (rank == 1) parameters[2].grad().view(-1)[3].fill_(2e-12);
  };
  EXPECT_EQ(fault_of(check(2, {.before_sum = change})),
            fmt::format("the gradient of {} on 2 workers differs from one worker's, which is zero, "
                        "by 2.0e-12 (bound 1e-12)",
                        good.gradients[2].name));
}

}  // namespace
}  // namespace distca
