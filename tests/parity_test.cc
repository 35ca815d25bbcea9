// The same result for every plan (DESIGN rule 1): loss and every gradient of a small Llama equal
// the single worker's, for worker counts, ways to plan, batches and head counts; the exchange's
// gradients once against finite differences.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "distca/base/random.h"
#include "distca/comm/device_copy.h"
#include "distca/comm/ordered_sum.h"
#include "distca/comm/thread_group.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"
#include "distca/train/config.h"
#include "distca/train/optimizer.h"
#include "distca/train/plan_request.h"
#include "distca/train/step.h"

namespace distca {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> lengths;  // tokens of each document
  bool goes_on = false;          // pieces: the last token has the original's next one as its target
};

// Seven workers: documents must be cut, shared and missing.
const std::vector<Case> kBatches = {
    {"one_document_over_all_workers", {1800}},
    {"many_tiny_ones", std::vector<int64_t>(40, 17)},
    {"odd_lengths", {1, 2, 127, 128, 129, 511, 700, 3}},
    {"one_token", {1}, true},
    {"an_empty_worker", {130, 5}},  // more workers than blocks
};

/// A way to plan: a line in kPlanners.
struct Planner {
  std::string name;
  std::string scheduler;
  std::string layout = {};  // "": the scheduler's own
  bool key_sub_ranges = false;
  bool spread = false;
  bool cut_tasks = false;  // cut the scheduler's tasks at random into key sub-ranges
};
const std::vector<Planner> kPlanners = {
    {.name = "local", .scheduler = "local"},
    {.name = "greedy", .scheduler = "greedy"},
    {.name = "balanced", .scheduler = "balanced"},
    {.name = "balanced_sequential", .scheduler = "balanced", .layout = "sequential"},
    {.name = "balanced_keys", .scheduler = "balanced", .key_sub_ranges = true},
    {.name = "balanced_spread", .scheduler = "balanced", .key_sub_ranges = true, .spread = true},
    {.name = "per_document_cp", .scheduler = "per-document-cp"},
    {.name = "wlb", .scheduler = "wlb"},
    {.name = "greedy_cut", .scheduler = "greedy", .cut_tasks = true},
};
const Planner& planner(const std::string& name) {
  return *std::ranges::find(kPlanners, name, &Planner::name);
}

Plan plan_by(const Planner& planner, Config config, const NanoBatch& nano_batch, int workers) {
  config.plan.scheduler = planner.scheduler;
  config.plan.layout = planner.layout;
  config.plan.key_sub_ranges = planner.key_sub_ranges;
  config.plan.spread = planner.spread;
  Plan plan = make_plan(plan_request(config, nano_batch, workers));
  if (planner.cut_tasks) {
    Random random(9);
    testing::cut_tasks(plan, random);
  }
  return plan;
}

LlamaConfig small_llama(int64_t num_kv_heads, ScalarType dtype, int64_t num_layers = 2) {
  LlamaConfig config;
  config.vocab_size = 31;
  config.hidden_size = 32;
  config.intermediate_size = 40;
  config.num_hidden_layers = num_layers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = num_kv_heads;
  config.head_dim = 8;
  config.initializer_range = 0.2;  // attention far from uniform: a wrong mask shows
  config.dtype = dtype;
  return config;
}

/// Tokens of a nano-batch made from a seed.
LocalTokens make_tokens(const NanoBatch& nano_batch, const std::vector<Segment>& segments,
                        int64_t vocab_size, bool goes_on) {
  LocalTokens local;
  auto id = [&](int64_t document, int64_t position) {
    return static_cast<int64_t>(Random(document * 1'000'003 + position).below(vocab_size));
  };
  for (const Segment& segment : segments) {
    for (int64_t p = segment.tokens.begin; p < segment.tokens.end; ++p) {
      const bool last = p + 1 == nano_batch.documents[segment.document].length;
      local.ids.push_back(id(segment.document, p));
      local.targets.push_back(last && !goes_on ? kNoTarget : id(segment.document, p + 1));
      local.positions.push_back(p);
    }
  }
  return local;
}

struct Outcome {
  double loss = 0;
  std::vector<at::Tensor> gradients;  // of all parameters, summed over ranks
  int64_t bytes_sent = 0;
};

/// Loss and gradients of two nano-batches, the documents and their reverse, on `workers` ranks as
/// threads.
Outcome run(const LlamaConfig& model_config, const Case& documents, int workers,
            const std::string& planner_name, const StepOptions& options = {},
            const ThreadDevice& device = {}) {
  Config config;
  config.model = model_config;
  const std::vector<int64_t>& lengths = documents.lengths;
  std::vector<int64_t> reversed(lengths.rbegin(), lengths.rend());
  const std::vector<NanoBatch> nano_batches = {NanoBatch::from_lengths(lengths),
                                               NanoBatch::from_lengths(reversed)};
  int64_t num_targets = 0;
  for (int64_t length : lengths) num_targets += 2 * (documents.goes_on ? length : length - 1);
  Outcome outcome;
  const auto body = [&](Communicator& comm) {
    at::set_num_threads(1);
    const Llama model(model_config, 11, comm.cuda_device());
    Optimizer optimizer(model.parameters(), {.max_grad_norm = 0});
    std::vector<NanoInput> inputs;
    for (const NanoBatch& nano_batch : nano_batches) {
      const Plan plan = plan_by(planner(planner_name), config, nano_batch, workers);
      for (const std::string& violation :
           validate(plan, checks_of(find_scheduler(plan.options.scheduler)))) {
        ADD_FAILURE() << violation;
      }
      inputs.push_back({.exchange = PlanIndex(plan).exchange(comm.rank()),
                        .tokens = make_tokens(nano_batch, plan.layout.workers[comm.rank()],
                                              model_config.vocab_size, documents.goes_on)});
    }
    const StepResult result =
        Step(model_config, &model, comm, options)
            .train(
                std::move(inputs), num_targets, [&] { optimizer.sum_and_clip(comm); }, [] {});
    double sums[2] = {result.loss_sum, static_cast<double>(result.bytes.sent)};
    ordered_sum(comm, sums, "loss");
    if (comm.rank() != 0) return;
    outcome.loss = sums[0];
    outcome.bytes_sent = static_cast<int64_t>(sums[1]);
    for (const at::Tensor& parameter : model.parameters())
      outcome.gradients.push_back(parameter.grad().cpu().clone());
  };
  run_ranks(workers, {}, body, device);
  return outcome;
}

/// max|a - b| / max|b|; where b is exactly zero the absolute difference.
double difference(const at::Tensor& a, const at::Tensor& b) {
  const double scale = b.abs().max().item<double>();
  const double gap = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  return scale == 0 ? gap : gap / scale;
}

void expect_same(const Outcome& got, const Outcome& want, double bound, double zero_bound,
                 const std::string& what) {
  EXPECT_LE(std::abs(got.loss - want.loss), bound * std::abs(want.loss)) << what;
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    const bool zero = want.gradients[i].abs().max().item<double>() == 0;
    EXPECT_LE(difference(got.gradients[i], want.gradients[i]), zero ? zero_bound : bound)
        << what << ", parameter " << i;
  }
}

/// workers, planner, batch, key heads of 4 query heads, layers
using ParityCase = std::tuple<int, std::string, int, int, int>;
class ParityTest : public ::testing::TestWithParam<ParityCase> {};

TEST_P(ParityTest, loss_and_every_gradient_equal_one_workers) {
  const auto [workers, planner_name, batch, kv_heads, layers] = GetParam();
  const LlamaConfig model = small_llama(kv_heads, ScalarType::kFloat64, layers);
  const Outcome one = run(model, kBatches[batch], 1, "local");
  const Outcome many = run(model, kBatches[batch], workers, planner_name);
  EXPECT_EQ(one.bytes_sent, 0);
  EXPECT_GT(one.loss, 0);
  expect_same(many, one, 1e-10, 1e-12, kBatches[batch].name);
}

std::string parity_name(const ::testing::TestParamInfo<ParityCase>& info) {
  const auto [workers, planner_name, batch, kv_heads, layers] = info.param;
  return fmt::format("{}_workers_{}_{}_{}_{}_layers", workers, planner_name, kBatches[batch].name,
                     kv_heads == 4 ? "MHA" : "GQA", layers);
}

auto all_planners() {
  std::vector<std::string> names;
  for (const Planner& planner : kPlanners) names.push_back(planner.name);
  return ::testing::ValuesIn(names);
}

auto grid(std::vector<int> layers) {
  return ::testing::Combine(::testing::Values(1, 2, 3, 4, 7), all_planners(),
                            ::testing::Range(0, static_cast<int>(kBatches.size())),
                            ::testing::Values(4, 2), ::testing::ValuesIn(layers));
}
INSTANTIATE_TEST_SUITE_P(fp64, ParityTest, grid({2}), parity_name);
INSTANTIATE_TEST_SUITE_P(full, ParityTest, grid({3, 4}), parity_name);

/// Two runs that round differently. Along the longest chain of a two-layer step a value is rounded
/// about n = 100 times (15 operations a layer, 4 around them, forward, and twice that backward);
/// roundings of relative size u at random add up to sqrt(n) u, and among 1e4 elements the largest
/// lies 4 standard deviations out.
double format_bound(ScalarType dtype) {
  constexpr double kRoundings = 100, kDeviations = 4;
  // Weight gradients sum over all rows, in another order: in fp32 for either format.
  constexpr double kRows = 3600;
  const double fp32 = 0x1p-24, u = dtype == ScalarType::kFloat32 ? fp32 : 0x1p-8;
  return kDeviations * (std::sqrt(kRoundings) * u + std::sqrt(kRows) * fp32);
}

class FormatParityTest
    : public ::testing::TestWithParam<std::tuple<ScalarType, std::string, int, int, KernelChoice>> {
};

TEST_P(FormatParityTest, loss_and_every_gradient_stay_within_the_formats_bound) {
  const auto [dtype, planner_name, workers, kv_heads, kernel] = GetParam();
  const double bound = format_bound(dtype);
  const LlamaConfig model = small_llama(kv_heads, dtype);
  const Case documents{"mixed", {1100, 333, 129, 238}};
  const Outcome one = run(model, documents, 1, "local", {.kernel = kernel});
  const Outcome many = run(model, documents, workers, planner_name, {.kernel = kernel});
  const Outcome accumulator = run(
      model, documents, workers, planner_name,
      {.gradient_travel = CoreAttentionOptions::GradientTravel::kAccumulator, .kernel = kernel});
  expect_same(many, one, bound, 0, "gradients travel in the compute type");
  expect_same(accumulator, one, bound, 0, "gradients travel in the accumulator's type");
}

using FormatCase = FormatParityTest::ParamType;
auto format_grid(KernelChoice kernel) {
  return ::testing::Combine(::testing::Values(ScalarType::kFloat32, ScalarType::kBFloat16),
                            all_planners(), ::testing::Values(2, 3, 7), ::testing::Values(4, 2),
                            ::testing::Values(kernel));
}

/// Of ATen's grid every pair of format, workers and heads, and every planner twice.
std::vector<FormatCase> aten_pairs() {
  std::vector<FormatCase> cases;
  for (size_t i = 0; i < 2 * kPlanners.size(); ++i) {
    constexpr int kWorkers[] = {2, 3, 7};
    cases.emplace_back(i % 2 == 0 ? ScalarType::kFloat32 : ScalarType::kBFloat16,
                       kPlanners[i % kPlanners.size()].name, kWorkers[i % 3],
                       i / 2 % 2 == 0 ? 4 : 2, KernelChoice::kAten);
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(formats, FormatParityTest, format_grid(KernelChoice::kCpu));
INSTANTIATE_TEST_SUITE_P(aten, FormatParityTest, ::testing::ValuesIn(aten_pairs()));
INSTANTIATE_TEST_SUITE_P(full, FormatParityTest, format_grid(KernelChoice::kAten));

/// Other kernels of the same format: the roundings of both.
TEST(parity, every_kernel_and_number_of_threads_gives_the_same) {
  const Case documents{"mixed", {1100, 333, 129, 238}};
  for (const ScalarType dtype : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    const LlamaConfig model = small_llama(2, dtype);
    const double bound = 2 * format_bound(dtype);
    const auto with = [&](KernelChoice kernel, int threads) {
      return run(model, documents, 2, "balanced", {.kernel = kernel, .threads = threads});
    };
    const Outcome reference = with(KernelChoice::kReference, 1);
    const Outcome ours = with(KernelChoice::kCpu, 1);
    expect_same(ours, reference, bound, 0, "our own kernel");
    expect_same(with(KernelChoice::kAten, 1), reference, bound, 0, "ATen's");
    expect_same(with(KernelChoice::kCpu, 3), ours, 0, 0, "three threads, the same bits");
  }
}

TEST(parity, a_window_gives_the_same_on_every_plan) {
  LlamaConfig model = small_llama(2, ScalarType::kFloat64);
  model.sliding_window = 200;
  const Case lengths{"mixed", {1100, 333, 129, 238}};
  const Outcome one = run(model, lengths, 1, "local");
  for (const Planner& planner : kPlanners) {
    expect_same(run(model, lengths, 3, planner.name), one, 1e-10, 1e-12, "window, " + planner.name);
  }
  model.sliding_window = 0;
  EXPECT_GT(std::abs(run(model, lengths, 1, "local").loss - one.loss), 1e-3)
      << "the window hid nothing";
}

TEST(parity, ranks_as_threads_on_one_gpu_give_the_cpus_result) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device on this machine";
  const LlamaConfig model = small_llama(2, ScalarType::kFloat64);
  const Outcome cpu = run(model, {"gpu", {700, 300, 129}}, 1, "local");
  const Outcome gpu = run(model, {"gpu", {700, 300, 129}}, 3, "greedy", {}, cuda_thread_device(0));
  expect_same(gpu, cpu, 1e-10, 1e-12, "CUDA");
}

TEST(parity, the_same_plan_gives_the_same_bits) {
  const LlamaConfig model = small_llama(2, ScalarType::kFloat32);
  const Case documents{"mixed", {700, 300, 129}};
  const Outcome a = run(model, documents, 3, "greedy"), b = run(model, documents, 3, "greedy");
  EXPECT_EQ(a.loss, b.loss);
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(a.gradients[i], b.gradients[i])) << i;
  }
}

/// One element of Q, K or V (which = 0, 1, 2) on its home rank.
struct Probe {
  int rank = 0;
  int which = 0;
  int64_t element = 0;
};
constexpr int64_t kProbeHeads = 4, kProbeKvHeads = 2, kProbeDim = 8;

/// L = sum(W * O) over all ranks with the probed element moved by `step`; dL / d(element) into
/// `analytic` if wanted.
double exchange_loss(const Plan& plan, const Probe& probe, double step, double* analytic) {
  const int workers = plan.cluster.num_workers;
  const PlanIndex index(plan);
  std::vector<double> part(workers);
  run_ranks(workers, {}, [&](Communicator& comm) {
    const int rank = comm.rank();
    const RankExchange exchange = index.exchange(rank);
    auto random = [&](uint64_t salt, int64_t heads) {
      at::Generator generator = at::detail::createCPUGenerator(salt * 100 + rank);
      return at::randn({exchange.local_tokens, heads, kProbeDim}, generator, at::kDouble);
    };
    std::vector<at::Tensor> qkv = {random(1, kProbeHeads), random(2, kProbeKvHeads),
                                   random(3, kProbeKvHeads)};
    const at::Tensor weight = random(4, kProbeHeads);
    if (rank == probe.rank) qkv[probe.which].view({-1})[probe.element] += step;
    const kernels::Shape shape{.num_heads = kProbeHeads,
                               .num_kv_heads = kProbeKvHeads,
                               .head_dim_qk = kProbeDim,
                               .head_dim_v = kProbeDim,
                               .softmax_scale = 0.35};
    AttentionKernel kernel({.shape = shape, .type = ScalarType::kFloat64});
    CoreAttention attention(exchange, {}, kernel, comm);
    attention.enter(0, qkv[0], qkv[1], qkv[2], "enter");
    attention.attend(0);
    part[rank] = (attention.leave(0, "leave") * weight).sum().item<double>();
    EXPECT_GT(attention.bytes().sent + attention.bytes().received, 0) << "nothing is exchanged";
    if (analytic == nullptr) return;
    at::Tensor gradients[3];
    attention.enter_backward(0, weight, "enter backward");
    attention.attend_backward(0);
    attention.leave_backward(0, &gradients[0], &gradients[1], &gradients[2], "leave backward");
    if (rank == probe.rank) {
      *analytic = gradients[probe.which].view({-1})[probe.element].item<double>();
    }
  });
  return std::accumulate(part.begin(), part.end(), 0.0);
}

TEST(parity, the_exchanges_gradients_are_those_of_finite_differences) {
  const int workers = 3;
  Config config;
  config.model = small_llama(kProbeKvHeads, ScalarType::kFloat64);
  config.plan.tolerance = 0.0;
  Random random(5);
  for (int trial = 0; trial < 24; ++trial) {
    const Plan plan = plan_by(planner(trial % 2 == 0 ? "greedy" : "greedy_cut"), config,
                              NanoBatch::from_lengths({300, 140}), workers);
    Probe probe{.rank = static_cast<int>(random.below(workers)), .which = trial % 3};
    const int64_t heads = probe.which == 0 ? kProbeHeads : kProbeKvHeads;
    probe.element =
        static_cast<int64_t>(random.below(plan.layout.num_tokens(probe.rank) * heads * kProbeDim));
    double analytic = 0;
    const double step = 1e-5;
    const double loss = exchange_loss(plan, probe, 0, &analytic);
    const double numeric =
        (exchange_loss(plan, probe, step, nullptr) - exchange_loss(plan, probe, -step, nullptr)) /
        (2 * step);
    // Central differences: the loss is rounded to about 2^-53 a few times over, then divided by the
    // step; the third derivative, of order 1 for a single element, is multiplied by step^2.
    const double bound = 16 * 0x1p-53 * std::max(1.0, std::abs(loss)) / step + step * step;
    EXPECT_NEAR(analytic, numeric, bound) << "rank " << probe.rank << " input " << probe.which;
  }
}

}  // namespace
}  // namespace distca
