// Every way to divide the matrices of layers gives the same result (DESIGN rule 1): loss, norm,
// every gradient and every weight after an update equal the single worker's, for tensor x pipeline
// x data sizes, key/value heads, families, documents with fewer rows than ranks, orders, overlap
// modes, recomputation, ZeRO-1, tied embeddings and weight gradients that wait.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "tests/pipeline_parity_testing.h"

namespace distca::parity {
namespace {

using testing::Order;

enum Documents { kUneven, kTiny };

struct Case {
  int tensor, stages, replicas;
  int64_t kv_heads = 4;  // heads; queries have 8
  ModelType family = ModelType::kLlama;
  Documents documents = kUneven;
  Overlap overlap = Overlap::kPingPong;
  Recompute recompute = Recompute::kNone;
  bool zero = false, tied = false;
  int dedicated = 0, outstanding = 0;
  Order order = Order::kAligned;
  int nano_batches = 3;
};

constexpr Recompute kSelective = Recompute::kSelective, kFull = Recompute::kFull;
constexpr Overlap kWithin = Overlap::kWithin, kBlocking = Overlap::kNone,
                  kPingPong = Overlap::kPingPong;

// In the order of Case.
const Case kCases[] = {
    {2, 1, 1, 4},
    {2, 1, 1, 2, ModelType::kQwen2, kTiny, kBlocking, kFull, true, true},
    {2, 1, 1, 8, ModelType::kQwen3, kUneven, kWithin, kSelective, false, true},
    {4, 1, 1, 2, ModelType::kQwen3, kUneven, kPingPong, kFull, true, false, 1},
    {4, 1, 1, 4, ModelType::kLlama, kTiny, kWithin, kSelective, true, true},
    {4, 1, 1, 1, ModelType::kQwen2, kUneven, kBlocking, Recompute::kNone, false, true},
    {8, 1, 1, 8, ModelType::kLlama, kUneven, kPingPong, Recompute::kNone, true, true},
    {8, 1, 1, 2, ModelType::kQwen3, kTiny, kWithin, kFull, false, false},
    {2, 1, 2, 4, ModelType::kLlama, kUneven, kPingPong, kSelective, true, true},
    {2, 1, 2, 1, ModelType::kQwen3, kUneven, kWithin, Recompute::kNone, false, false, 1},
    {2, 1, 3, 2, ModelType::kQwen2, kUneven, kPingPong, kFull, true, false},
    {2, 2, 1, 4, ModelType::kLlama, kUneven, kPingPong, Recompute::kNone, false, true, 0, 1},
    {2, 2, 1, 2, ModelType::kQwen3, kTiny, kBlocking, kFull, true, true, 0, 0, Order::kMixed},
    {2, 2, 2, 4, ModelType::kQwen2, kUneven, kPingPong, kSelective, true, true, 1, 2},
    {2, 2, 2, 2, ModelType::kLlama, kUneven, kWithin, kFull, false, false, 0, 1, Order::kMixed},
    {4, 2, 1, 2, ModelType::kLlama, kUneven, kPingPong, Recompute::kNone, true, true, 0, 1},
    {4, 2, 1, 4, ModelType::kQwen3, kTiny, kWithin, kSelective, false, true, 0, 2, Order::kAtHome},
    {2, 3, 1, 4, ModelType::kQwen2, kUneven, kPingPong, kFull, true, true, 1, 1, Order::kMixed},
    {2, 3, 1, 1, ModelType::kLlama, kUneven, kBlocking, Recompute::kNone, false, true},
    // Ping-pong is counter-phase here: as many nano-batches in both slots, and one alone.
    {.tensor = 4, .stages = 1, .replicas = 2, .dedicated = 1, .nano_batches = 4},
    {2, 2, 2, 2, ModelType::kQwen3, kUneven, kPingPong, kFull, true, true, 1, 1, Order::kMixed, 4},
    {2, 2, 1, 4, ModelType::kLlama, kTiny, kPingPong, kSelective, true, false, 0, 0},
    {.tensor = 2, .stages = 1, .replicas = 1, .nano_batches = 1},
};

std::string name_of(const Case& c) {
  constexpr const char* kFamilies[] = {"llama", "qwen2", "qwen3"};
  constexpr const char* kRecomputes[] = {"kept", "selective", "full"};
  std::string name = fmt::format(
      "{}x{}x{}_kv{}_{}_{}_{}_{}{}{}_{}_dedicated_{}_{}_wait_{}", c.tensor, c.stages, c.replicas,
      c.kv_heads, kFamilies[static_cast<size_t>(c.family)],
      c.documents == kTiny ? "tiny" : "uneven", overlap_name(c.overlap),
      kRecomputes[static_cast<size_t>(c.recompute)], c.zero ? "_zero" : "", c.tied ? "_tied" : "",
      schedule_name(c.order), c.dedicated, c.outstanding, c.nano_batches);
  std::ranges::replace(name, '-', '_');
  return name;
}

PipelineRun run_of(const Case& c, ScalarType type) {
  PipelineRun what{
      .layers = std::vector<int64_t>(c.stages, c.stages == 1 ? 3 : 1),
      .nano_batches = c.documents == kTiny ? std::vector<std::vector<int64_t>>{{2}, {1, 2}, {5}}
                                           : testing::uneven_lengths(c.nano_batches),
      .replicas = c.replicas,
      .dedicated = c.dedicated,
      .tensor = c.tensor,
      .order = c.order,
      .options = {.overlap = c.overlap, .recompute = c.recompute, .distributed_optimizer = c.zero},
      .outstanding = c.outstanding};
  if (c.stages == 2) what.layers[1] = 2;
  what.model = {.vocab_size = 601,
                .hidden_size = 32,
                .intermediate_size = 48,
                .num_hidden_layers = 3,
                .num_attention_heads = 8,
                .num_key_value_heads = c.kv_heads,
                .head_dim = 8,
                .initializer_range = 0.2,  // attention far from uniform: a wrong head shows
                .tie_word_embeddings = c.tied,
                .dtype = type,
                .model_type = c.family};
  what.options.chunk_rows = 100;
  what.options.least_share_pairs = 1 << 12;  // documents are short
  return what;
}

/// The single worker's outcome, played once.
const PipelineOutcome& one_worker(const PipelineRun& what) {
  using Key = std::tuple<std::vector<std::vector<int64_t>>, int64_t, ModelType, bool>;
  static std::map<Key, PipelineOutcome> known;
  const LlamaConfig& model = what.model;
  const auto [at, is_new] = known.try_emplace(
      {what.nano_batches, model.num_key_value_heads, model.model_type, model.tie_word_embeddings});
  if (is_new)
    at->second = run(PipelineRun{.model = model, .layers = {3}, .nano_batches = what.nano_batches});
  return at->second;
}

class TensorParityTest : public ::testing::TestWithParam<Case> {};

TEST_P(TensorParityTest, loss_gradients_and_updated_weights_equal_one_workers) {
  const PipelineRun what = run_of(GetParam(), ScalarType::kFloat64);
  const PipelineOutcome& one = one_worker(what);
  const PipelineOutcome many = run(what);
  EXPECT_LE(std::abs(many.norm - one.norm), 1e-10 * one.norm);
  Outcome of_one = one.step;
  if (what.options.distributed_optimizer) of_one.gradients.clear();  // no rank has the sums
  expect_same(many.step, of_one, 1e-10, 1e-12, "step");
  const Outcome weights{.loss = 1, .gradients = many.weights},
      want{.loss = 1, .gradients = one.weights};
  expect_same(weights, want, 1e-10, 1e-12, "weights");
  fmt::print("largest difference: step {:.2g}, weights {:.2g}\n",
             largest_difference(many.step, of_one), largest_difference(weights, want));
}

INSTANTIATE_TEST_SUITE_P(fp64, TensorParityTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return name_of(info.param); });

TEST(tensor_parity, an_evaluation_has_the_loss_of_one_worker) {
  for (const Case& c : {Case{2, 1, 1}, Case{4, 2, 1, 2}}) {
    PipelineRun what = run_of(c, ScalarType::kFloat64);
    what.evaluate = true;
    PipelineRun one = what;
    one.tensor = 1;
    one.layers = {3};
    const double want = run(one).step.loss;
    EXPECT_NEAR(run(what).step.loss, want, 1e-10 * want);
  }
}

TEST(tensor_parity, two_runs_have_the_same_bits) {
  const PipelineRun what = run_of(kCases[13], ScalarType::kFloat32);
  const PipelineOutcome first = run(what), second = run(what);
  EXPECT_EQ(first.step.loss, second.step.loss);
  EXPECT_EQ(first.norm, second.norm);
  for (size_t i = 0; i < first.weights.size(); ++i)
    EXPECT_TRUE(at::equal(first.weights[i], second.weights[i]));
}

/// Core attention in parts, cut by query rows, changes no bit of O.
TEST(tensor_parity, counter_phase_has_the_bits_of_the_loss_of_none) {
  for (Case c : {Case{2, 1, 1}, Case{4, 1, 2, 2}, Case{2, 2, 1}}) {
    c.nano_batches = 4;
    const PipelineRun what = run_of(c, ScalarType::kFloat32);
    for (const Program& program : programs_of(what)) {
      EXPECT_TRUE(std::ranges::any_of(program.ops, [](const Op& op) { return op.part > 1; }))
          << "core attention is not in parts";
    }
    c.overlap = kBlocking;
    EXPECT_EQ(run(what).step.loss, run(run_of(c, ScalarType::kFloat32)).step.loss) << name_of(c);
  }
}

TEST(tensor_parity, narrow_formats_stay_within_their_bounds) {
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    const PipelineRun what = run_of({2, 2, 1, 4}, type);
    PipelineRun one = what;
    one.tensor = 1;
    one.layers = {3};
    // Parts of rows are rounded once more than whole ones.
    const double bound = std::sqrt(2.0) * format_bound(type);
    expect_same(run(what).step, run(one).step, bound, bound, "step");
  }
}

}  // namespace
}  // namespace distca::parity
