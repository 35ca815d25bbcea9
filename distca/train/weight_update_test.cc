#include "distca/train/weight_update.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "distca/comm/thread_group.h"
#include "distca/model/llama.h"
#include "distca/program/program_builder.h"
#include "distca/runtime/executor.h"
#include "distca/train/step.h"

namespace distca {
namespace {

/// 13 blocks of the flat layout; norms end within a block.
LlamaConfig small(ScalarType dtype) {
  return {.vocab_size = 97,
          .hidden_size = 40,
          .intermediate_size = 72,
          .num_hidden_layers = 3,
          .num_attention_heads = 2,
          .num_key_value_heads = 1,
          .head_dim = 24,
          .dtype = dtype};
}

/// Backward of nothing, then the sum and the update.
Program program_of(std::shared_ptr<const GradientExchange> gradients) {
  const ProgramRequest request{.nano_batches = {{std::make_shared<const AttentionExchange>()}},
                               .model = {.num_layers = 3},
                               .gradients = std::move(gradients)};
  ProgramBuilder builder(request, 1, ProgramBuilder::Waiting::kForWhatIsNeeded);
  const Visit& backward = builder.visits(/*slot=*/0)[1];
  builder.begin_visit(backward);
  for (int turn = 0; turn < 3; ++turn) {
    builder.start_layer(backward, turn);
    builder.dispatch(backward, turn);
    builder.combine(backward, turn);
    builder.end_layer(backward, turn);
  }
  builder.end_visit(backward);
  return builder.take();
}

class UpdatePlayer final : public OpPlayer {
 public:
  UpdatePlayer(WeightUpdate& update, double loss_sum) : update_(update), loss_sum_(loss_sum) {}
  void play(const Op& op) override {
    if (of_weights(op)) update_.play(op, loss_sum_);
  }
  void pack(const Op&) override {}
  void land(const Op&) override {}
  void issue(const Op& op) override {
    if (of_weights(op)) update_.issue(op);
  }
  void wait(const Op& op) override { update_.wait(op); }
  void wait_sent(const Op& op) override { update_.wait_sent(op); }

 private:
  static bool of_weights(const Op& op) { return op.bucket >= 0 || op.kind == OpKind::kGradNorm; }
  WeightUpdate& update_;
  double loss_sum_;
};

struct UpdateWay {
  ScalarType dtype = ScalarType::kFloat32;
  int ranks = 1;
  double bucket_mb = 25;
  bool distributed = false;
};

struct Trained {
  std::vector<at::Tensor> main_params, parameters;
  std::vector<double> norms;
  int64_t state_bytes = 0, most_state_bytes = 0;
};

/// Three updates with the same sums of gradients for every number of ranks; `refused`: one of them.
Trained train(const UpdateWay& way, int refused = -1) {
  Trained result;
  std::vector<int64_t> bytes(way.ranks);
  run_ranks(way.ranks, {}, [&](Communicator& comm) {
    at::set_num_threads(1);
    const LlamaConfig config = small(way.dtype);
    const StepOptions options{.distributed_optimizer = way.distributed, .bucket_mb = way.bucket_mb};
    const auto gradients =
        gradient_exchange(config, options, whole_model(config), comm.rank(), way.ranks);
    const Llama model(config, 5, -1, main_params_of(options));
    Optimizer optimizer(model, 5, {.weight_decay = 0.1}, gradients);
    bytes[comm.rank()] = optimizer.state_bytes();
    const Program program = program_of(gradients);
    ExchangeBuffers buffers(-1);
    buffers.prepare(program);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_gradients();
      for (size_t i = 0; i < model.weights().size(); ++i) {
        at::Tensor gradient = model.parameters()[i].grad();
        const double shift = 1000 * step + 17 * static_cast<double>(i);
        const at::Tensor all = (at::arange(gradient.numel(), at::kDouble) + shift).sin();
        // Shares of 1/4, 1/4, 1/2: added in rank order, they give the same bits as the whole.
        const int halvings = way.ranks - std::max(1, comm.rank());
        gradient.copy_(all.view(gradient.sizes()).to(gradient.scalar_type()) *
                       std::ldexp(1.0, -halvings));
      }
      const UpdateRequest request{.optimizer = &optimizer,
                                  .workers = &comm,
                                  .max_grad_norm = 1,
                                  .lr = 0.01,
                                  .accepts = [&](const GradientSum&) { return step != refused; }};
      WeightUpdate update(program, buffers, comm, config, request);
      UpdatePlayer player(update, comm.rank() + 1.0);
      OpTimes times;
      play(program, player, &times);
      EXPECT_EQ(update.sum().loss_sum, way.ranks * (way.ranks + 1) / 2.0);
      if (comm.rank() == 0) result.norms.push_back(update.sum().norm);
    }
    for (const at::Tensor& parameter : model.parameters()) {
      if (comm.rank() == 0) result.parameters.push_back(parameter.detach().clone());
    }
    const std::vector<at::Tensor> main_params = optimizer.gather_main_params(comm);
    EXPECT_EQ(main_params.empty(), comm.rank() > 0);
    for (const at::Tensor& main_param : main_params)
      result.main_params.push_back(main_param.clone());
  });
  result.state_bytes = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  result.most_state_bytes = *std::ranges::max_element(bytes);
  return result;
}

void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
}

TEST(WeightUpdate, has_the_same_bits_for_every_size_of_buckets_and_number_of_ranks) {
  for (const ScalarType dtype :
       {ScalarType::kFloat32, ScalarType::kFloat64, ScalarType::kBFloat16}) {
    const Trained want = train({.dtype = dtype});
    EXPECT_GT(want.norms[0], 1) << "clipping is active";
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const double bucket_mb : {0.001, 0.05, 25.0}) {
        for (const bool distributed : {false, true}) {
          SCOPED_TRACE(fmt::format("{} ranks, buckets of {} MiB, distributed {}", ranks, bucket_mb,
                                   distributed));
          const Trained got = train({dtype, ranks, bucket_mb, distributed});
          EXPECT_EQ(got.norms, want.norms);
          expect_equal(got.main_params, want.main_params);
          if (!distributed) continue;
          // The phases compute with the same values as with a copy of the main params.
          for (size_t i = 0; i < want.main_params.size(); ++i) {
            EXPECT_TRUE(at::equal(got.parameters[i],
                                  want.main_params[i].to(got.parameters[i].scalar_type())));
          }
        }
      }
    }
  }
}

TEST(WeightUpdate, a_refused_step_leaves_the_weights_and_counts_no_update) {
  for (const bool distributed : {false, true}) {
    const Trained got = train({.ranks = 2, .bucket_mb = 0.05, .distributed = distributed}, 1);
    const Trained want = train({}, 1);
    expect_equal(got.main_params, want.main_params);
    EXPECT_FALSE(at::equal(got.main_params[0], train({}).main_params[0]));
  }
}

TEST(WeightUpdate, a_distributed_optimizer_divides_the_state_among_the_ranks) {
  for (const ScalarType dtype : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    const auto elements = flat_layout(weight_table(small(dtype))).elements;
    // Two moments; in bf16 main params, too.
    const int64_t each = dtype == ScalarType::kBFloat16 ? 12 : 8;
    for (const int ranks : {1, 2, 4, 7}) {
      const Trained whole = train({dtype, ranks, 0.016});
      const Trained shared = train({dtype, ranks, 0.016, true});
      EXPECT_EQ(whole.most_state_bytes, elements * 8);
      EXPECT_EQ(shared.state_bytes, elements * each);
      EXPECT_LE(shared.most_state_bytes, elements * each / ranks + kFlatBlock * each);
    }
  }
}

}  // namespace
}  // namespace distca
