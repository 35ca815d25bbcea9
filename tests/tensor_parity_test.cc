// Every way to divide the matrices of layers gives the same result (DESIGN rule 1): loss, norm,
// every gradient and every weight after an update equal the single worker's, for tensor x pipeline
// x data sizes, key/value heads, families, schedulers, documents with fewer rows than ranks,
// orders, dedicated servers, overlap modes, recomputation, ZeRO-1, tied embeddings and weight
// gradients that wait: every pair of values, and in full/ every triple.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "tests/covering_pairs.h"
#include "tests/pipeline_parity_cases.h"

namespace distca::parity {
namespace {

/// Ranks that divide the layers of a server, stages, replicas.
struct Size {
  int tensor, stages, replicas;
};
constexpr std::array<Size, 9> kSizes{{{2, 1, 1},
                                      {4, 1, 1},
                                      {8, 1, 1},
                                      {2, 1, 2},
                                      {2, 2, 1},
                                      {2, 2, 2},
                                      {4, 2, 1},
                                      {2, 3, 1},
                                      {2, 1, 3}}};
constexpr std::array kKvHeads{8, 4, 2, 1};  // queries have 8
constexpr std::array kFamilies{ModelType::kLlama, ModelType::kQwen2, ModelType::kQwen3};
constexpr std::array kFamilyNames{"llama", "qwen2", "qwen3"};
constexpr std::array kNanoBatches{1, 3, 4};
enum Documents { kUneven, kTiny };

/// A case: an index into each list of values, 0 or 1 for zero and tied, and how many micro-batches
/// may wait for their weight gradients.
struct Case {
  int size = 0, kv_heads = 0, family = 0, planner = 0, nano_batches = 1, placement = 0,
      documents = kUneven, overlap = 2, recompute = 0, zero = 0, tied = 0, outstanding = 0;

  static std::vector<int> sizes() {
    return {std::size(kSizes),
            std::size(kKvHeads),
            std::size(kFamilies),
            std::size(kPlanners),
            std::size(kNanoBatches),
            std::size(kPlacements),
            2,
            std::size(kOverlaps),
            std::size(kRecomputes),
            2,
            2,
            3};
  }
  static Case of(const std::vector<int>& row) {
    return {row[0], row[1], row[2], row[3], row[4],  row[5],
            row[6], row[7], row[8], row[9], row[10], row[11]};
  }
  const Size& grid() const { return kSizes[size]; }
};

std::vector<Case> cases(int strength) {
  std::vector<Case> all;
  for (const std::vector<int>& row : covering_rows(Case::sizes(), strength))
    all.push_back(Case::of(row));
  return all;
}

std::string grid_name(const Case& c) {
  return fmt::format("{}x{}x{}", c.grid().tensor, c.grid().stages, c.grid().replicas);
}

std::string name_of(const Case& c) {
  return fmt::format("{}_kv{}_{}_{}_nano_{}_{}_{}_{}_{}{}{}_{}_wait", grid_name(c),
                     kKvHeads[c.kv_heads], kFamilyNames[c.family], kPlanners[c.planner],
                     kNanoBatches[c.nano_batches], c.documents == kTiny ? "tiny" : "uneven",
                     overlap_part(c.overlap), kPlacements[c.placement].name,
                     kRecomputeNames[c.recompute], c.tied ? "_tied" : "", c.zero ? "_zero" : "",
                     c.outstanding);
}

/// [nano-batch] Tokens of each document: those of kTiny are fewer than most grids have ranks.
std::vector<std::vector<int64_t>> nano_batches_of(const Case& c) {
  const int count = kNanoBatches[c.nano_batches];
  if (c.documents == kUneven) return testing::uneven_lengths(count);
  std::vector<std::vector<int64_t>> tiny = {{5, 3}, {1, 2}, {}, {4}};
  tiny.resize(count);
  return tiny;
}

PipelineRun run_of(const Case& c, ScalarType type = ScalarType::kFloat64) {
  const Planner& by = planner(kPlanners[c.planner]);
  const Size& grid = c.grid();
  PipelineRun what{.layers = std::vector<int64_t>(grid.stages, grid.stages == 1 ? 3 : 1),
                   .nano_batches = nano_batches_of(c),
                   .replicas = grid.replicas,
                   .dedicated = kPlacements[c.placement].dedicated,
                   .tensor = grid.tensor,
                   .order = kPlacements[c.placement].order,
                   .plan = {.scheduler = by.scheduler,
                            .layout = by.layout,
                            .split_kv = by.split_kv,
                            .spread = by.spread},
                   .options = {.overlap = kOverlaps[c.overlap].overlap,
                               .recompute = kRecomputes[c.recompute],
                               .distributed_optimizer = c.zero == 1},
                   .outstanding = c.outstanding};
  if (grid.stages == 2) what.layers[1] = 2;
  what.model = {.vocab_size = 601,
                .hidden_size = 32,
                .intermediate_size = 48,
                .num_hidden_layers = 3,
                .num_attention_heads = 8,
                .num_key_value_heads = kKvHeads[c.kv_heads],
                .head_dim = 8,
                .initializer_range = 0.2,  // attention far from uniform: a wrong head shows
                .tie_word_embeddings = c.tied == 1,
                .dtype = type,
                .model_type = kFamilies[c.family]};
  what.options.chunk_rows = 100;
  what.options.least_share_pairs = 1 << 12;  // documents are short
  return what;
}

/// One worker plays it.
PipelineRun alone(PipelineRun what) {
  what.tensor = 1;
  what.layers = {3};
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

class TensorParityTest : public ::testing::TestWithParam<Case> {
 protected:
  static void TearDownTestSuite() { seen_.print(); }
  static inline SeenDifferences seen_;
};

TEST_P(TensorParityTest, loss_gradients_and_updated_weights_equal_one_workers) {
  const Case& c = GetParam();
  const PipelineRun what = run_of(c);
  seen_.expect_same(grid_name(c), run(what), one_worker(what), c.zero == 0);
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return name_of(info.param); }
INSTANTIATE_TEST_SUITE_P(fp64, TensorParityTest, ::testing::ValuesIn(cases(2)), case_name);
INSTANTIATE_TEST_SUITE_P(full, TensorParityTest, ::testing::ValuesIn(cases(3)), case_name);

TEST(tensor_parity, an_evaluation_has_the_loss_of_one_worker) {
  for (const Case& c : {Case{.size = 0}, Case{.size = 6, .kv_heads = 2}}) {
    PipelineRun what = run_of(c);
    what.evaluate = true;
    const double want = run(alone(what)).step.loss;
    EXPECT_NEAR(run(what).step.loss, want, 1e-10 * want);
  }
}

/// 2 x 2 x 2 with a dedicated server, ping-pong, ZeRO-1 and a tied embedding.
constexpr Case kMuch{.size = 5,
                     .kv_heads = 1,
                     .family = 1,
                     .placement = 1,
                     .recompute = 1,
                     .zero = 1,
                     .tied = 1,
                     .outstanding = 2};

/// Bytes that a rank of a server without replicas sends to the others of its server in a step
/// (docs/program.md, "Tensor parallelism").
int64_t closed_form(const PipelineRun& what, int rank) {
  const int stage = what.grid().stage(rank / what.tensor);
  if (stage < 0) return 0;
  const LlamaConfig& model = what.model;
  const bool is_double = model.dtype == ScalarType::kFloat64;
  const int64_t row_bytes = p2p_bytes(model, 1), wide = is_double ? 8 : 4, peers = what.tensor - 1;
  int64_t bytes = 0;
  for (const std::vector<int64_t>& lengths : what.nano_batches) {
    const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t own =
        TensorPlace{.size = what.tensor, .index = rank % what.tensor}.part(all).size();
    const int64_t gather = peers * own * row_bytes, sum = (all - own) * row_bytes;
    const int64_t statistics = peers * all * 3 * wide;
    bytes += what.layers[stage] * (2 * gather + 2 * sum);
    if (stage == 0) bytes += sum;
    if (stage == what.stages() - 1) bytes += gather + statistics;
    if (what.evaluate) continue;
    bytes += what.layers[stage] * (2 * 2 * gather + 2 * sum);
    if (stage == 0) bytes += gather;
    if (stage == what.stages() - 1) bytes += sum;
  }
  return bytes;
}

TEST(tensor_parity, bytes_between_ranks_of_a_server_are_those_of_the_closed_form) {
  for (const Case& c :
       {Case{.size = 0}, Case{.size = 1, .documents = kTiny, .overlap = 0, .recompute = 2},
        Case{.size = 6, .kv_heads = 2, .family = 2, .recompute = 1, .zero = 1},
        Case{.size = 4,
        .kv_heads = 1,
        .family = 1,
        .placement = 1,
        .documents = kTiny,
        .overlap = 1,
        .recompute = 2,
        .tied = 1}}) {
    for (const ScalarType type : {ScalarType::kFloat64, ScalarType::kBFloat16}) {
      for (const bool evaluate : {false, true}) {
        PipelineRun what = run_of(c, type);
        what.evaluate = evaluate;
        const PipelineOutcome outcome = run(what);
        int64_t all = 0;
        for (int rank = 0; rank < what.ranks(); ++rank) {
          EXPECT_EQ(outcome.bytes_tensor[rank], closed_form(what, rank))
              << name_of(c) << ", rank " << rank;
          all += outcome.bytes_tensor[rank];
        }
        // One server sends nothing else.
        EXPECT_EQ(outcome.step.bytes_sent == all, c.grid().stages == 1) << name_of(c);
        EXPECT_GE(outcome.step.bytes_sent, all);
      }
    }
  }
}

/// A rank of T has 1 / T of the heads and of the rows that go to another stage.
TEST(tensor_parity, all_ranks_of_a_server_together_send_other_servers_what_one_rank_would) {
  for (const std::vector<int64_t>& layers : {std::vector<int64_t>{3}, {1, 2}}) {
    PipelineRun what = run_of({.nano_batches = 2});
    what.layers = layers;
    what.replicas = 2;
    what.tensor = 1;
    const int64_t one = run(what).step.bytes_sent;
    EXPECT_GT(one, 0);
    for (const int tensor : {2, 4}) {
      what.tensor = tensor;
      const PipelineOutcome many = run(what);
      EXPECT_EQ(std::accumulate(many.bytes_tensor.begin(), many.bytes_tensor.end(), one),
                many.step.bytes_sent)
          << tensor << " ranks, " << layers.size() << " stages";
    }
  }
}

TEST(tensor_parity, two_runs_have_the_same_bits) {
  const PipelineRun what = run_of(kMuch, ScalarType::kFloat32);
  const PipelineOutcome first = run(what), second = run(what);
  EXPECT_EQ(first.step.loss, second.step.loss);
  EXPECT_EQ(first.norm, second.norm);
  for (size_t i = 0; i < first.weights.size(); ++i)
    EXPECT_TRUE(at::equal(first.weights[i], second.weights[i]));
}

/// Core attention in parts, cut by query rows, changes no bit of O.
TEST(tensor_parity, counter_phase_has_the_bits_of_the_loss_of_none) {
  for (Case c : {Case{.size = 0}, Case{.size = 3, .kv_heads = 2}, Case{.size = 4}}) {
    c.nano_batches = 2;  // four
    const PipelineRun what = run_of(c, ScalarType::kFloat32);
    for (const Program& program : programs_of(what)) {
      EXPECT_TRUE(std::ranges::any_of(program.ops, [](const Op& op) { return op.part > 1; }))
          << "core attention is not in parts";
    }
    c.overlap = 0;
    EXPECT_EQ(run(what).step.loss, run(run_of(c, ScalarType::kFloat32)).step.loss) << name_of(c);
  }
}

TEST(tensor_parity, the_bits_of_the_loss_do_not_depend_on_the_number_of_stages) {
  PipelineRun what = run_of({.size = 3}, ScalarType::kFloat32);
  what.evaluate = true;
  const double want = run(what).step.loss;
  for (const std::vector<int64_t>& layers : {std::vector<int64_t>{1, 2}, {1, 1, 1}}) {
    what.layers = layers;
    EXPECT_EQ(run(what).step.loss, want) << layers.size() << " stages";
  }
}

TEST(tensor_parity, narrow_formats_stay_within_their_bounds) {
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    const PipelineRun what = run_of({.size = 4, .kv_heads = 1}, type);
    // Parts of rows are rounded once more than whole ones.
    const double bound = std::sqrt(2.0) * format_bound(type);
    expect_same(run(what).step, run(alone(what)).step, bound, bound, "step");
  }
}

}  // namespace
}  // namespace distca::parity
