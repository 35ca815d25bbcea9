// The memory of every rank of a pipeline or of tensor parallelism, as forecast/memory_peak.h
// predicts it from the rank's program, compared with what the meter of each rank counts while the
// step is played: for grids, numbers of nano-batches, orders, overlap modes, recomputation, types,
// ZeRO-1, dedicated servers, uneven stages and families, every pair of values. And the estimate
// that refuses a run is below the prediction.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tuple>

#include "distca/base/text.h"
#include "distca/forecast/memory.h"
#include "distca/forecast/memory_peak.h"
#include "tests/covering_pairs.h"
#include "tests/pipeline_parity_testing.h"

namespace distca::parity {
namespace {

using testing::Order;

struct Size {
  int stages, replicas, tensor = 1;
};
struct Mode {
  const char* name;
  Order order;
  Overlap overlap;
};
constexpr std::array<Size, 3> kSizes{{{2, 1}, {3, 1}, {2, 2}}};
constexpr std::array<Size, 5> kTensorSizes{{{1, 1, 2}, {1, 1, 4}, {1, 2, 2}, {2, 1, 4}, {3, 1, 2}}};
constexpr std::array<Mode, 5> kModes{{{"aligned_ping_pong", Order::kAligned, Overlap::kPingPong},
                                      {"mixed_ping_pong", Order::kMixed, Overlap::kPingPong},
                                      {"aligned_within", Order::kAligned, Overlap::kWithin},
                                      {"aligned_none", Order::kAligned, Overlap::kNone},
                                      {"at_home", Order::kAtHome, Overlap::kPingPong}}};
constexpr std::array<Mode, 3> kTensorModes{
    {{"aligned_ping_pong", Order::kAligned, Overlap::kPingPong},
     {"mixed_within", Order::kMixed, Overlap::kWithin},
     {"at_home_none", Order::kAtHome, Overlap::kNone}}};
constexpr std::array<const char*, 3> kRecomputeNames{"kept", "selective", "full"};
constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kFull};
constexpr std::array kTypes{ScalarType::kFloat32, ScalarType::kBFloat16};
constexpr std::array kFamilies{ModelType::kLlama, ModelType::kQwen2, ModelType::kQwen3};
constexpr std::array<const char*, 3> kFamilyNames{"llama", "qwen2", "qwen3"};
constexpr std::array kNanoBatches{1, 4, 7};

struct Case {
  Size size;
  Mode mode;
  Recompute recompute = Recompute::kNone;
  ScalarType type = ScalarType::kFloat32;
  int nano_batches = 1;
  bool uneven = false, zero = false, dedicated = false, tied = false;
  int outstanding = 0;
  // Tensor parallelism alone has others.
  int64_t kv_heads = 2;
  ModelType family = ModelType::kLlama;

  std::string name() const {
    std::string name =
        fmt::format("{}x{}_{}_{}_{}_{}_nanos{}{}{}{}_{}_wait", size.stages, size.replicas,
                    mode.name, kRecomputeNames[static_cast<size_t>(recompute)], short_name(type),
                    nano_batches, uneven ? "_uneven" : "", zero ? "_zero" : "",
                    dedicated ? "_dedicated" : "", tied ? "_tied" : "", outstanding);
    if (size.tensor == 1) return name;
    return fmt::format("{}x{}_kv{}_{}", size.tensor, name, kv_heads,
                       kFamilyNames[static_cast<size_t>(family)]);
  }
};
std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name(); }

PipelineRun run_of(const Case& c) {
  PipelineRun what{.layers = std::vector<int64_t>(c.size.stages, 2),
                   .replicas = c.size.replicas,
                   .dedicated = c.dedicated && c.mode.order != Order::kAtHome ? 1 : 0,
                   .tensor = c.size.tensor,
                   .order = c.mode.order,
                   .options = {.overlap = c.mode.overlap,
                               .recompute = c.recompute,
                               .distributed_optimizer = c.zero},
                   .outstanding = c.outstanding};
  if (c.uneven) what.layers[std::max(0, c.size.stages - 2)] = 3;
  // Some ranks have more rows than kFull computes again at a time, and others fewer.
  for (int64_t n = 0; n < c.nano_batches; ++n)
    what.nano_batches.push_back({500, 400, 300, 200, 700, 100 + 100 * (n % 2)});
  what.model = {
      .vocab_size = 700,
      .hidden_size = 128,
      .intermediate_size = 320,
      .num_hidden_layers = std::accumulate(what.layers.begin(), what.layers.end(), int64_t{0}),
      .num_key_value_heads = c.kv_heads,
      .head_dim = 32,
      .tie_word_embeddings = c.tied,
      .dtype = c.type,
      .model_type = c.family};
  if (what.tensor == 1) return what;
  what.model.hidden_size = 256;
  what.model.intermediate_size = 640;
  what.model.num_attention_heads = 8;
  what.model.vocab_size = 2003;  // no ranks have equal parts of it
  return what;
}

/// The configuration of a training run with such steps.
Config config_of(const PipelineRun& what) {
  Config config;
  config.model = what.model;
  config.batch.nano_batches = std::ssize(what.nano_batches);
  config.batch.nano_batch_tokens = INT64_MAX;
  for (const std::vector<int64_t>& lengths : what.nano_batches) {
    config.batch.nano_batch_tokens =
        std::min(config.batch.nano_batch_tokens,
                 std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  }
  config.train.overlap = what.options.overlap;
  config.train.recompute = what.options.recompute;
  config.servers.dedicated = int64_t{what.dedicated} * what.tensor;
  config.parallel.tensor_model_parallel_size = what.tensor;
  config.parallel.pipeline_model_parallel_size = what.stages();
  config.parallel.pipeline_layers.assign(what.layers.begin(), what.layers.end());
  config.parallel.pipeline_schedule = what.order;
  config.parallel.outstanding_weight_gradients = what.outstanding;
  config.parallel.use_distributed_optimizer = what.options.distributed_optimizer;
  return config;
}

class PipelineMemoryTest : public ::testing::TestWithParam<Case> {
 protected:
  PipelineRun what_ = run_of(GetParam());
  Config config_ = config_of(what_);
  RunGrid grid_ = run_grid(config_, what_.workers());
  std::vector<Program> programs_ = programs_of(what_);

  PeakMemory peak_of(int rank) const {
    PeakOfRank peak(config_, rank, what_.workers());
    peak.add(programs_[rank]);
    return peak.peak();
  }
};

TEST_P(PipelineMemoryTest, of_every_stage_is_predicted) {
  const std::vector<int64_t> measured = run(what_).peak_bytes;
  ASSERT_EQ(std::ssize(measured), what_.ranks());
  for (int rank = 0; rank < what_.ranks(); ++rank) {
    const PeakMemory peak = peak_of(rank);
    const auto bytes = static_cast<double>(measured[rank]);
    fmt::print("{}: predicted {:.2f} MiB in {}, measured {:.2f} MiB, ratio {:.4f}\n",
               grid_.name_of(rank), peak.total() / 0x1p20, peak.where, bytes / 0x1p20,
               peak.total() / bytes);
    EXPECT_NEAR(peak.total() / bytes, 1, 0.01) << grid_.name_of(rank);
  }
}

TEST_P(PipelineMemoryTest, is_not_less_than_what_refuses_a_run) {
  const LocalRanks all_ranks{.count = what_.ranks()};
  std::vector<PeakMemory> peaks;
  double all = 0;
  for (int rank = 0; rank < what_.ranks(); ++rank) {
    peaks.push_back(peak_of(rank));
    all += peaks.back().total();
  }
  const double needed = least_together(peaks).total();
  EXPECT_LE(memory_needed(config_, what_.workers(), all_ranks).total(), needed);
  EXPECT_LE(needed, all);
  EXPECT_GT(needed, 0.5 * all) << "what does not fit would not be seen";
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const std::vector<int>& row :
       covering_pairs({std::size(kSizes), std::size(kModes), std::size(kRecomputes),
                       std::size(kTypes), std::size(kNanoBatches), 2, 2, 2, 2, 3})) {
    cases.push_back({.size = kSizes[row[0]],
                     .mode = kModes[row[1]],
                     .recompute = kRecomputes[row[2]],
                     .type = kTypes[row[3]],
                     .nano_batches = kNanoBatches[row[4]],
                     .uneven = row[5] == 1,
                     .zero = row[6] == 1,
                     .dedicated = row[7] == 1,
                     .tied = row[8] == 1,
                     .outstanding = row[9]});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Pairs, PipelineMemoryTest, ::testing::ValuesIn(cases()), case_name);

/// Cases of tensor parallelism with every pair, or every triple, of values.
std::vector<Case> tensor_cases(int strength) {
  std::vector<Case> cases;
  for (const std::vector<int>& row :
       covering_rows({std::size(kTensorSizes), std::size(kTensorModes), std::size(kRecomputes),
                      std::size(kTypes), 2, 2, 2, 2, 2, 2, 2, std::size(kFamilies)},
                     strength)) {
    cases.push_back({.size = kTensorSizes[row[0]],
                     .mode = kTensorModes[row[1]],
                     .recompute = kRecomputes[row[2]],
                     .type = kTypes[row[3]],
                     .nano_batches = row[4] == 1 ? 3 : 1,
                     .uneven = row[5] == 1,
                     .zero = row[6] == 1,
                     .dedicated = row[7] == 1,
                     .tied = row[8] == 1,
                     .outstanding = row[9] * 2,
                     .kv_heads = row[10] == 1 ? 8 : 2,
                     .family = kFamilies[row[11]]});
  }
  // In fp64, ATen computes attention, whose own tensors are predicted on a GPU alone: the peak of
  // this one lies elsewhere.
  cases.push_back({.size = kTensorSizes[0],
                   .mode = kTensorModes[2],
                   .type = ScalarType::kFloat64,
                   .nano_batches = strength - 1,
                   .kv_heads = 8});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(TensorPairs, PipelineMemoryTest, ::testing::ValuesIn(tensor_cases(2)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(full, PipelineMemoryTest, ::testing::ValuesIn(tensor_cases(3)), case_name);

TEST(pipeline_memory, recomputation_neither_sends_nor_computes_core_attention_again) {
  const auto core_attention_flops = [](const std::vector<Program>& programs) {
    double flops = 0;
    for (const Program& program : programs) {
      for (const Op& op : program.ops) flops += op.kind == OpKind::kCoreAttention ? op.flops : 0;
    }
    return flops;
  };
  Case c{.size = kSizes[2], .mode = kModes[0], .nano_batches = 4};
  const double flops = core_attention_flops(programs_of(run_of(c)));
  const PipelineOutcome kept = run(run_of(c));
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    c.recompute = recompute;
    EXPECT_EQ(core_attention_flops(programs_of(run_of(c))), flops);
    const PipelineOutcome again = run(run_of(c));
    EXPECT_EQ(again.step.bytes_sent, kept.step.bytes_sent);
    for (size_t rank = 0; rank < kept.peak_bytes.size(); ++rank)
      EXPECT_LT(again.peak_bytes[rank], kept.peak_bytes[rank]) << "rank " << rank;
  }
}

class StandingTest : public ::testing::TestWithParam<std::tuple<bool, ScalarType, bool>> {
 protected:
  StandingTest() {
    std::tie(config_.parallel.use_distributed_optimizer, config_.model.dtype,
             config_.model.tie_word_embeddings) = GetParam();
    config_.model.num_hidden_layers = 7;
    config_.checkpoint.every_steps = 1;
  }
  /// Summed over the two replicas of each stage.
  MemoryParts of_all(std::vector<int64_t> layers, int stages) {
    config_.parallel.pipeline_layers = std::move(layers);
    config_.parallel.pipeline_model_parallel_size = stages;
    return standing_memory(config_, 2 * stages, {.count = 2 * stages});
  }
  bool converts() const {
    return config_.model.dtype == ScalarType::kBFloat16 &&
           !config_.parallel.use_distributed_optimizer;
  }
  Config config_;
};

TEST_P(StandingTest, on_all_stages_it_is_what_stands_on_one_worker_and_the_tied_copy) {
  const MemoryParts one = of_all({}, 1), three = of_all({2, 3, 2}, 3);
  const auto elements = static_cast<double>(config_.model.vocab_size * config_.model.hidden_size);
  const double tied = config_.model.tie_word_embeddings ? 2 * elements : 0;
  const bool zero = config_.parallel.use_distributed_optimizer;
  const double type =
      zero ? static_cast<double>(element_bytes(config_.model.dtype)) : sizeof(float);
  EXPECT_EQ(three.of(MemoryPart::kWeights), one.of(MemoryPart::kWeights) + tied * type);
  EXPECT_EQ(three.of(MemoryPart::kGradients),
            one.of(MemoryPart::kGradients) + tied * sizeof(float));
  EXPECT_EQ(three.of(MemoryPart::kState),
            one.of(MemoryPart::kState) + (zero ? 0 : 2 * tied * sizeof(float)));
  EXPECT_EQ(three.of(MemoryPart::kCopies), one.of(MemoryPart::kCopies));
  EXPECT_EQ(three.of(MemoryPart::kCheckpoint), one.of(MemoryPart::kCheckpoint));
  // The first stage has the embedding, of whose rows bf16 makes no copy, the last one the head.
  const auto copies = [&](int rank) {
    return standing_memory(config_, 6, {rank, 1}).of(MemoryPart::kCopies);
  };
  EXPECT_EQ(copies(0) > 0, converts());
  EXPECT_EQ(copies(5) - copies(0), converts() ? 2 * elements : 0);
}

/// How often all ranks that divide a model hold its elements together: once, but for weights that
/// each of them has, and for key/value heads that some share.
double times_held(const Weight& weight, const LlamaConfig& model, int ranks) {
  if (weight.split == SplitAxis::kNone) return ranks;
  const bool is_of_kv = weight.name.find(".k_proj.") != std::string::npos ||
                        weight.name.find(".v_proj.") != std::string::npos;
  const auto shared = static_cast<double>(ranks) / static_cast<double>(model.num_key_value_heads);
  return is_of_kv ? std::max(1.0, shared) : 1;
}

TEST_P(StandingTest, on_ranks_that_divide_layers_it_is_what_each_holds) {
  config_.model.num_attention_heads = 8;
  config_.model.vocab_size = 2003;
  config_.model.model_type = ModelType::kQwen2;
  const bool zero = config_.parallel.use_distributed_optimizer;
  const auto type = static_cast<double>(element_bytes(config_.model.dtype));
  const MemoryParts one = standing_memory(config_, 2, {.count = 2});
  for (const int ranks : {2, 4, 8}) {
    config_.parallel.tensor_model_parallel_size = ranks;
    double held = 0, matrices = 0;
    for (const Weight& weight : weight_table(config_.model)) {
      const double elements = times_held(weight, config_.model, ranks) * weight.numel();
      held += elements;
      matrices += weight.is_matrix() ? elements : 0;
    }
    // Two replicas.
    const MemoryParts all = standing_memory(config_, 2 * ranks, {.count = 2 * ranks});
    EXPECT_EQ(all.of(MemoryPart::kGradients), 2 * held * sizeof(float));
    EXPECT_EQ(all.of(MemoryPart::kWeights),
              2 * (held * sizeof(float) - (zero ? matrices * (sizeof(float) - type) : 0)));
    EXPECT_DOUBLE_EQ(all.of(MemoryPart::kState),
                     zero ? one.of(MemoryPart::kState) : 4 * held * sizeof(float));
    EXPECT_DOUBLE_EQ(all.of(MemoryPart::kCheckpoint), one.of(MemoryPart::kCheckpoint));
    EXPECT_EQ(all.of(MemoryPart::kCopies) > 0, converts());
    double of_each = 0;
    for (int rank = 0; rank < 2 * ranks; ++rank)
      of_each += standing_memory(config_, 2 * ranks, {rank, 1}).total();
    EXPECT_DOUBLE_EQ(of_each, all.total());
  }
}
INSTANTIATE_TEST_SUITE_P(Pairs, StandingTest,
                         ::testing::Combine(::testing::Bool(), ::testing::ValuesIn(kTypes),
                                            ::testing::Bool()));

}  // namespace
}  // namespace distca::parity
