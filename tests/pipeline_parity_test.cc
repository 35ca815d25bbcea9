// The same result for every pipeline (DESIGN rule 1): loss, norm, every gradient and every weight
// after an update of all stages equal the single worker's, for grids, numbers of nano-batches,
// orders, overlap modes, recomputation, ZeRO-1, dedicated servers and uneven stages; every pair of
// values. And the bits of the loss do not depend on the number of stages.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "distca/base/text.h"
#include "tests/covering_pairs.h"
#include "tests/pipeline_parity_testing.h"

namespace distca::parity {
namespace {

using testing::Order;

struct Size {
  int stages, replicas;
};
struct Batch {
  const char* name;
  std::vector<std::vector<int64_t>> nano_batches;
};

constexpr std::array<Size, 5> kSizes{{{2, 1}, {3, 1}, {4, 1}, {2, 2}, {3, 2}}};
const std::array<Batch, 5> kBatches{{{"1_nano", testing::uneven_lengths(1)},
                                     {"2_nanos", testing::uneven_lengths(2)},
                                     {"3_nanos", testing::uneven_lengths(3)},
                                     {"5_nanos", testing::uneven_lengths(5)},
                                     {"tiny_ones", {{1, 2}, {}, {130, 5}, {3}}}}};
constexpr std::array<const char*, 3> kOrderNames{"aligned", "mixed", "at_home"};
constexpr std::array kOrders{Order::kAligned, Order::kMixed, Order::kAtHome};
constexpr std::array<const char*, 3> kRecomputeNames{"kept", "selective", "full"};
constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kFull};

/// Two layers each on two stages, otherwise one, and on an uneven pipeline one more on the last but
/// one.
std::vector<int64_t> layers_of(int stages, bool uneven) {
  std::vector<int64_t> layers(stages, stages == 2 ? 2 : 1);
  if (uneven) ++layers[stages - 2];
  return layers;
}

struct Case {
  Size size;
  int batch = 0;
  Overlap overlap = Overlap::kNone;
  int order = 0;
  int recompute = 0;
  bool zero = false;
  int kv_heads = 4;
  int dedicated = 0;
  bool uneven = false;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string overlap(overlap_name(c.overlap));
  std::ranges::replace(overlap, '-', '_');
  return fmt::format("{}x{}_{}_{}_{}_{}_{}_{}_dedicated_{}{}", c.size.stages, c.size.replicas,
                     kBatches[c.batch].name, overlap, kOrderNames[c.order],
                     kRecomputeNames[c.recompute], c.kv_heads == 4 ? "MHA" : "GQA", c.dedicated,
                     c.uneven ? "uneven" : "even", c.zero ? "_zero" : "");
}

std::vector<Case> pairs() {
  std::vector<Case> cases;
  for (const std::vector<int>& row :
       covering_pairs({std::size(kSizes), std::size(kBatches), std::size(kOverlaps),
                       std::size(kOrders), std::size(kRecomputes), 2, 2, 2, 2})) {
    Case c{.size = kSizes[row[0]],
           .batch = row[1],
           .overlap = kOverlaps[row[2]].overlap,
           .order = row[3],
           .recompute = row[4],
           .zero = row[5] == 1,
           .kv_heads = row[6] == 1 ? 2 : 4,
           .dedicated = row[7],
           .uneven = row[8] == 1};
    if (kOrders[c.order] == Order::kAtHome) c.dedicated = 0;  // nothing to serve
    cases.push_back(c);
  }
  return cases;
}

class PipelineParityTest : public ::testing::TestWithParam<Case> {
 protected:
  static void TearDownTestSuite() {
    Table table({"grid", "steps", "largest difference", "of weights"});
    for (const auto& [grid, seen] : seen_) {
      table.add_row({grid, std::to_string(seen.steps), fmt::format("{:.2g}", seen.step),
                     fmt::format("{:.2g}", seen.weights)});
    }
    fmt::print("{}", table.to_string());
  }
  struct Seen {
    int steps = 0;
    double step = 0, weights = 0;
  };
  static inline std::map<std::string, Seen> seen_;  // [grid]
};

/// The single worker's outcome, played once.
const PipelineOutcome& one_worker(const Case& c, const PipelineRun& what) {
  static std::map<std::string, PipelineOutcome> known;
  const auto [at, is_new] =
      known.try_emplace(fmt::format("{} {} {}", c.batch, c.kv_heads, what.model.num_hidden_layers));
  if (is_new)
    at->second = run(PipelineRun{.model = what.model,
                                 .layers = {what.model.num_hidden_layers},
                                 .nano_batches = what.nano_batches});
  return at->second;
}

TEST_P(PipelineParityTest, loss_gradients_and_updated_weights_equal_one_workers) {
  const Case& c = GetParam();
  PipelineRun what{.layers = layers_of(c.size.stages, c.uneven),
                   .nano_batches = kBatches[c.batch].nano_batches,
                   .replicas = c.size.replicas,
                   .dedicated = c.dedicated,
                   .order = kOrders[c.order],
                   .options = {.overlap = c.overlap,
                               .recompute = kRecomputes[c.recompute],
                               .distributed_optimizer = c.zero}};
  const int64_t layers = std::accumulate(what.layers.begin(), what.layers.end(), int64_t{0});
  what.model = small_llama(c.kv_heads, ScalarType::kFloat64, layers);
  const PipelineOutcome& one = one_worker(c, what);
  EXPECT_GT(one.norm, 0.05) << "clipping is active";
  const PipelineOutcome many = run(what);
  EXPECT_LE(std::abs(many.norm - one.norm), 1e-10 * one.norm);
  Outcome of_one = one.step;
  if (c.zero) of_one.gradients.clear();  // no rank has the sums
  expect_same(many.step, of_one, 1e-10, 1e-12, "step");
  const Outcome weights{.loss = 1, .gradients = many.weights},
      want{.loss = 1, .gradients = one.weights};
  expect_same(weights, want, 1e-10, 1e-12, "weights");
  Seen& seen = seen_[fmt::format("{} x {}", c.size.stages, c.size.replicas)];
  ++seen.steps;
  seen.step = std::max({seen.step, largest_difference(many.step, of_one),
                        std::abs(many.norm - one.norm) / one.norm});
  seen.weights = std::max(seen.weights, largest_difference(weights, want));
}

/// All sizes, batches, overlap modes and orders; the rest in turn.
std::vector<Case> grid() {
  std::vector<Case> cases;
  int turn = 0;
  for (const Size& size : kSizes) {
    for (int batch = 0; batch < std::ssize(kBatches); ++batch) {
      for (const OverlapName& overlap : kOverlaps) {
        for (int order = 0; order < std::ssize(kOrders); ++order) {
          cases.push_back({.size = size,
                           .batch = batch,
                           .overlap = overlap.overlap,
                           .order = order,
                           .recompute = turn % 3,
                           .zero = turn / 3 % 2 == 1,
                           .kv_heads = turn / 5 % 2 == 1 ? 2 : 4,
                           .dedicated = kOrders[order] == Order::kAtHome ? 0 : turn / 7 % 2,
                           .uneven = turn % 2 == 1});
          ++turn;
        }
      }
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(fp64, PipelineParityTest, ::testing::ValuesIn(pairs()), case_name);
INSTANTIATE_TEST_SUITE_P(full, PipelineParityTest, ::testing::ValuesIn(grid()), case_name);

TEST(pipeline_parity, at_home_only_what_is_handed_over_travels) {
  PipelineRun what{.model = small_llama(2, ScalarType::kFloat64, 3),
                   .layers = {1, 1, 1},
                   .nano_batches = testing::uneven_lengths(3),
                   .order = Order::kAtHome};
  int64_t tokens = 0;
  for (const std::vector<int64_t>& lengths : what.nano_batches)
    tokens = std::accumulate(lengths.begin(), lengths.end(), tokens);
  constexpr int64_t kBoundaries = 2, kPasses = 2;
  EXPECT_EQ(run(what).step.bytes_sent, kBoundaries * kPasses * tokens * what.model.hidden_size * 8);
  what.evaluate = true;
  EXPECT_EQ(run(what).step.bytes_sent, kBoundaries * tokens * what.model.hidden_size * 8);
}

/// With equal replicas and layouts, and no document's keys cut.
TEST(pipeline_parity, the_bits_of_the_loss_do_not_depend_on_the_number_of_stages) {
  for (const KernelChoice kernel : {KernelChoice::kCpu, KernelChoice::kReference}) {
    for (const int replicas : {1, 2}) {
      PipelineRun what{.model = small_llama(2, ScalarType::kFloat32, 4),
                       .layers = {4},
                       .nano_batches = testing::uneven_lengths(3),
                       .replicas = replicas,
                       .options = {.kernel = kernel},
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
