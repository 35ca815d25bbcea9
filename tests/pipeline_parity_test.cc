// Every pipeline gives the same result (DESIGN rule 1): loss, norm, every gradient and every weight
// after an update of all stages equal the single worker's, for grids, numbers of micro-batches,
// schedulers, orders, overlap modes, dedicated servers, recomputation, ZeRO-1, uneven stages and
// tied embeddings: every pair of values, and in full/ every triple. And the bits of the loss do not
// depend on the number of stages.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "tests/covering_pairs.h"
#include "tests/pipeline_parity_cases.h"

namespace distca::parity {
namespace {

using testing::Order;

/// The vocabulary's size. With 32 features, its weights take 5 blocks of the flat layout and leave
/// a gap.
constexpr int64_t kVocabulary = 601;

struct Size {
  int stages, replicas;
};
constexpr std::array<Size, 7> kSizes{{{2, 1}, {3, 1}, {4, 1}, {2, 2}, {3, 2}, {2, 3}, {4, 2}}};
constexpr std::array kMicroBatches{1, 2, 3, 5, 8};
enum Documents { kUneven, kLastLacksOne, kTiny };
constexpr std::array<const char*, 3> kDocumentsNames{"uneven", "last_lacks_one", "tiny"};
enum Layers { kEven, kMoreBeforeTheLast, kMoreOnTheLast };
constexpr std::array<const char*, 3> kLayersNames{"even", "more_before_the_last",
                                                  "more_on_the_last"};
/// A case: an index into each list of values, 0 or 1 for zero, tied and gqa, and how many
/// micro-batches may wait for their weight gradients.
struct Case {
  int size = 0, planner = 0, micro_batches = 0, placement = 0, documents = 0, overlap = 0,
      recompute = 0, layers = 0, zero = 0, tied = 0, gqa = 0, outstanding = 0;

  static std::vector<int> sizes() {
    return {std::size(kSizes),
            std::size(kPlanners),
            std::size(kMicroBatches),
            std::size(kPlacements),
            std::size(kDocumentsNames),
            std::size(kOverlaps),
            std::size(kRecomputes),
            std::size(kLayersNames),
            2,
            2,
            2,
            3};
  }
  static Case of(const std::vector<int>& row) {
    return {row[0], row[1], row[2], row[3], row[4],  row[5],
            row[6], row[7], row[8], row[9], row[10], row[11]};
  }
  const Size& grid() const { return kSizes[size]; }
  /// In ping-pong, where stages share attention, a micro-batch has two nano-batches.
  int slots() const {
    return kOverlaps[overlap].overlap == Overlap::kPingPong &&
                   kPlacements[placement].order != Order::kAtHome
               ? 2
               : 1;
  }
};

std::string name_of(const Case& c) {
  return fmt::format("{}x{}_{}_{}_micro_{}_{}_{}_{}_{}_{}{}{}_{}_wait", c.grid().stages,
                     c.grid().replicas, kPlanners[c.planner], kMicroBatches[c.micro_batches],
                     kDocumentsNames[c.documents], overlap_part(c.overlap),
                     kPlacements[c.placement].name, kRecomputeNames[c.recompute],
                     kLayersNames[c.layers], c.gqa ? "GQA" : "MHA", c.tied ? "_tied" : "",
                     c.zero ? "_zero" : "", c.outstanding);
}

std::vector<Case> cases(int strength) {
  std::vector<Case> all;
  for (const std::vector<int>& row : covering_rows(Case::sizes(), strength))
    all.push_back(Case::of(row));
  return all;
}

/// [nano-batch] Tokens of each document.
std::vector<std::vector<int64_t>> nano_batches_of(const Case& c) {
  const int full = kMicroBatches[c.micro_batches] * c.slots();
  if (c.documents == kUneven) return testing::uneven_lengths(full);
  if (c.documents == kLastLacksOne) return testing::uneven_lengths(full - c.slots() + 1);
  // The first by itself has gradients of all weights: of two tokens, only one is a target, and
  // attends to one key.
  const std::vector<std::vector<int64_t>> tiny = {{130, 5}, {}, {1, 2}, {3}};
  std::vector<std::vector<int64_t>> lengths;
  for (int n = 0; n < full; ++n) lengths.push_back(tiny[n % 4]);
  return lengths;
}

/// Two layers on each of two even stages, otherwise one, and one more on one of uneven stages.
std::vector<int64_t> layers_of(const Case& c) {
  std::vector<int64_t> layers(c.grid().stages, c.grid().stages == 2 && c.layers == kEven ? 2 : 1);
  if (c.layers == kMoreBeforeTheLast) ++layers[layers.size() - 2];
  if (c.layers == kMoreOnTheLast) ++layers.back();
  return layers;
}

PipelineRun run_of(const Case& c) {
  const Planner& by = planner(kPlanners[c.planner]);
  PipelineRun what{.layers = layers_of(c),
                   .nano_batches = nano_batches_of(c),
                   .replicas = c.grid().replicas,
                   .dedicated = kPlacements[c.placement].dedicated,
                   .order = kPlacements[c.placement].order,
                   .plan = {.scheduler = by.scheduler,
                            .layout = by.layout,
                            .split_kv = by.split_kv,
                            .spread = by.spread},
                   .options = {.overlap = kOverlaps[c.overlap].overlap,
                               .recompute = kRecomputes[c.recompute],
                               .distributed_optimizer = c.zero == 1},
                   .outstanding = c.outstanding};
  const int64_t layers = std::accumulate(what.layers.begin(), what.layers.end(), int64_t{0});
  what.model = small_llama(c.gqa ? 2 : 4, ScalarType::kFloat64, layers);
  what.model.tie_word_embeddings = c.tied == 1;
  what.model.vocab_size = kVocabulary;
  return what;
}

class PipelineParityTest : public ::testing::TestWithParam<Case> {
 protected:
  static void TearDownTestSuite() { seen_.print(); }
  static inline SeenDifferences seen_;
};

/// The single worker's outcome, played once.
const PipelineOutcome& one_worker(const PipelineRun& what) {
  using Key = std::tuple<std::vector<std::vector<int64_t>>, int64_t, int64_t, bool>;
  static std::map<Key, PipelineOutcome> known;
  const LlamaConfig& model = what.model;
  const auto [at, is_new] = known.try_emplace({what.nano_batches, model.num_key_value_heads,
                                               model.num_hidden_layers, model.tie_word_embeddings});
  if (is_new)
    at->second = run(PipelineRun{
        .model = model, .layers = {model.num_hidden_layers}, .nano_batches = what.nano_batches});
  return at->second;
}

TEST_P(PipelineParityTest, loss_gradients_and_updated_weights_equal_one_workers) {
  const Case& c = GetParam();
  const PipelineRun what = run_of(c);
  const PipelineOutcome& one = one_worker(what);
  EXPECT_GT(one.norm, 0.05) << "clipping is active";
  const PipelineOutcome many = run(what);
  seen_.expect_same(fmt::format("{} x {}", c.grid().stages, c.grid().replicas), many, one,
                    c.zero == 0);
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return name_of(info.param); }
INSTANTIATE_TEST_SUITE_P(fp64, PipelineParityTest, ::testing::ValuesIn(cases(2)), case_name);
INSTANTIATE_TEST_SUITE_P(full, PipelineParityTest, ::testing::ValuesIn(cases(3)), case_name);

/// A case as values of everything, order and dedicated servers apart.
std::vector<int> values_of(const Case& c) {
  const Placement& placement = kPlacements[c.placement];
  return {c.size,
          c.planner,
          c.micro_batches,
          static_cast<int>(placement.order),
          placement.dedicated,
          c.documents,
          c.overlap,
          c.recompute,
          c.layers,
          c.zero,
          c.tied,
          c.gqa,
          c.outstanding};
}

TEST(pipeline_parity, the_full_suite_has_every_triple_of_values_that_can_be) {
  constexpr size_t kOrder = 3, kDedicated = 4;
  std::vector<int> sizes = Case::sizes();
  sizes[kOrder] = 3;
  sizes.insert(sizes.begin() + kDedicated, 2);
  std::vector<std::vector<int>> all;
  for (const Case& c : cases(3)) all.push_back(values_of(c));
  EXPECT_LE(all.size(), 1200u);
  for (size_t a = 0; a < sizes.size(); ++a) {
    for (size_t b = a + 1; b < sizes.size(); ++b) {
      for (size_t c = b + 1; c < sizes.size(); ++c) {
        std::set<std::array<int, 3>> seen;
        for (const std::vector<int>& values : all) seen.insert({values[a], values[b], values[c]});
        int can_be = sizes[a] * sizes[b] * sizes[c];
        // At home there is no dedicated server: five of the six pairs of both.
        if ((a == kOrder && b == kDedicated) || (b == kOrder && c == kDedicated))
          can_be = can_be / 6 * 5;
        EXPECT_EQ(std::ssize(seen), can_be) << a << " " << b << " " << c;
      }
    }
  }
}

TEST(pipeline_parity, at_home_only_p2p_messages_travel) {
  PipelineRun what{.model = small_llama(2, ScalarType::kFloat64, 3),
                   .layers = {1, 1, 1},
                   .nano_batches = testing::uneven_lengths(3),
                   .order = Order::kAtHome,
                   .plan = {.scheduler = "local"}};
  int64_t tokens = 0;
  for (const std::vector<int64_t>& lengths : what.nano_batches)
    tokens = std::accumulate(lengths.begin(), lengths.end(), tokens);
  constexpr int64_t kBoundaries = 2, kPasses = 2;
  EXPECT_EQ(run(what).step.bytes_sent, kBoundaries * kPasses * tokens * what.model.hidden_size * 8);
  what.evaluate = true;
  EXPECT_EQ(run(what).step.bytes_sent, kBoundaries * tokens * what.model.hidden_size * 8);
}

/// Every format and slice is tried. run() compares the two stages' copies.
TEST(pipeline_parity, both_stages_give_a_tied_embedding_the_same_bits) {
  for (const ScalarType dtype : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    for (const bool zero : {false, true}) {
      for (const int replicas : {1, 2}) {
        PipelineRun what{.model = small_llama(2, dtype, 3),
                         .layers = {1, 1, 1},
                         .nano_batches = testing::uneven_lengths(3),
                         .replicas = replicas,
                         .options = {.distributed_optimizer = zero}};
        what.model.tie_word_embeddings = true;
        what.model.vocab_size = kVocabulary;
        EXPECT_GT(run(what).norm, 0) << zero << " " << replicas;
      }
    }
  }
}

/// The replicas and layouts are equal, and no document's keys are cut.
TEST(pipeline_parity, the_bits_of_the_loss_do_not_depend_on_the_number_of_stages) {
  for (const KernelChoice kernel : {KernelChoice::kCpu, KernelChoice::kReference}) {
    for (const int replicas : {1, 2}) {
      PipelineRun what{.model = small_llama(2, ScalarType::kFloat32, 4),
                       .layers = {4},
                       .nano_batches = testing::uneven_lengths(3),
                       .replicas = replicas,
                       .options = {.kernel = {.choice = kernel}},
                       .evaluate = true};
      const double loss = run(what).step.loss;
      EXPECT_GT(loss, 0);
      size_t turn = 0;
      for (const std::vector<int64_t>& layers :
           {std::vector<int64_t>{2, 2}, {3, 1}, {1, 2, 1}, {1, 1, 1, 1}}) {
        what.layers = layers;
        what.options.overlap = kOverlaps[++turn % std::size(kOverlaps)].overlap;
        EXPECT_EQ(run(what).step.loss, loss) << layers.size() << " stages of " << replicas;
      }
    }
  }
}

}  // namespace
}  // namespace distca::parity
