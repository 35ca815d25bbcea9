// Every plan and every schedule gives the same result (DESIGN rule 1): loss and every gradient of a
// small Llama equal the single worker's, for worker counts, ways to plan, batches, head counts,
// schedules, kept and redispatched keys, servers in place and dedicated. `make test` runs a choice
// that covers every pair of values, `make test-full` the grid.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "distca/base/text.h"
#include "distca/comm/device_stream.h"
#include "tests/covering_pairs.h"
#include "tests/parity_testing.h"

namespace distca::parity {
namespace {

constexpr std::array<int, 5> kWorkers = {1, 2, 3, 4, 7};
constexpr std::array<int, 2> kKvHeads = {4, 2};  // heads of K and V, for 4 query heads: MHA, GQA
constexpr std::array<int, 3> kLayers = {2, 3, 4};

template <typename Values>
int count_of(const Values& values) {
  return static_cast<int>(std::size(values));
}

struct ParityCase {
  int workers = 1;
  std::string planner;
  int batch = 0;  // index into batches()
  int kv_heads = 4;
  int layers = 2;
  /// Kept keys are compared with redispatched ones of the same schedule and servers, if both are
  /// there.
  std::vector<Play> plays;
};

std::string parity_name(const ::testing::TestParamInfo<ParityCase>& info) {
  const ParityCase& c = info.param;
  return fmt::format("{}_workers_{}_{}_{}_{}_layers{}", c.workers, c.planner,
                     batches()[c.batch].name, c.kv_heads == 4 ? "MHA" : "GQA", c.layers,
                     c.plays.size() == 1 ? "_" + name_of(c.plays[0]) : "");
}

/// The single worker's outcome of a step, played once for each name.
const Outcome& one_worker(const std::string& name, const StepRun& what) {
  static std::map<std::string, Outcome> known;
  const auto [at, is_new] = known.try_emplace(name);
  if (is_new) at->second = run(what);
  return at->second;
}

/// How far steps were from one worker's, by how they were played: printed after the last one, for
/// logs of the whole grid.
class Differences {
 public:
  void add(const std::string& play, double difference) {
    auto& [steps, largest] = seen_[play];
    ++steps;
    largest = std::max(largest, difference);
  }
  void print(const char* unit) const {
    Table table({"played", "steps", fmt::format("largest difference, {}", unit)});
    for (const auto& [play, of_play] : seen_) {
      table.add_row({play, std::to_string(of_play.first), fmt::format("{:.2g}", of_play.second)});
    }
    fmt::print("{}", table.to_string());
  }

 private:
  std::map<std::string, std::pair<int, double>> seen_;
};

class ParityTest : public ::testing::TestWithParam<ParityCase> {
 protected:
  static void TearDownTestSuite() { differences.print("of the largest element"); }
  static inline Differences differences;
};

TEST_P(ParityTest, loss_and_every_gradient_equal_one_workers) {
  const ParityCase& c = GetParam();
  StepRun what{.model = small_llama(c.kv_heads, ScalarType::kFloat64, c.layers),
               .documents = batches()[c.batch]};
  const Outcome& one =
      one_worker(fmt::format("fp64 {} {} {}", c.batch, c.kv_heads, c.layers), what);
  EXPECT_EQ(one.bytes_sent, 0);
  EXPECT_GT(one.loss, 0);
  what.workers = c.workers;
  what.planner = c.planner;
  std::map<std::string, Outcome> kept;  // by schedule and servers
  for (const Play& play : c.plays) {
    what.play = play;
    const Outcome many = run(what);
    expect_same(many, one, 1e-10, 1e-12, name_of(play));
    differences.add("fp64_" + name_of(play), largest_difference(many, one));
    Play of_kept = play;
    of_kept.redispatched = false;
    if (!play.redispatched) {
      kept[name_of(play)] = many;
    } else if (const auto other = kept.find(name_of(of_kept)); other != kept.end()) {
      expect_same_bits(many, other->second, name_of(play) + " beside kept");
      EXPECT_GE(many.bytes_sent, other->second.bytes_sent);
    }
  }
}

/// Every schedule, kept or redispatched, and who serves, with every number of workers, every way to
/// plan, every batch, every model; and every pair of these.
std::vector<ParityCase> pairs() {
  std::vector<ParityCase> cases;
  for (const std::vector<int>& row :
       covering_pairs({count_of(plays()), count_of(planners()), count_of(batches()),
                       count_of(kWorkers), count_of(kLayers), count_of(kKvHeads)})) {
    cases.push_back({.workers = kWorkers[row[3]],
                     .planner = planners()[row[1]].name,
                     .batch = row[2],
                     .kv_heads = kKvHeads[row[5]],
                     .layers = kLayers[row[4]],
                     .plays = {plays()[row[0]]}});
  }
  return cases;
}

/// All of plays() with every number of workers, every way to plan, every batch and head count;
/// numbers of layers in turn.
std::vector<ParityCase> grid() {
  std::vector<ParityCase> cases;
  for (int w = 0; w < count_of(kWorkers); ++w) {
    for (int p = 0; p < count_of(planners()); ++p) {
      for (int b = 0; b < count_of(batches()); ++b) {
        for (const int kv_heads : kKvHeads) {
          cases.push_back({.workers = kWorkers[w],
                           .planner = planners()[p].name,
                           .batch = b,
                           .kv_heads = kv_heads,
                           .layers = kLayers[(w + p + b) % count_of(kLayers)],
                           .plays = plays()});
        }
      }
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(fp64, ParityTest, ::testing::ValuesIn(pairs()), parity_name);
INSTANTIATE_TEST_SUITE_P(full, ParityTest, ::testing::ValuesIn(grid()), parity_name);

constexpr std::array<ScalarType, 2> kFormats = {ScalarType::kFloat32, ScalarType::kBFloat16};
constexpr std::array<int, 3> kFormatWorkers = {2, 3, 7};
constexpr std::array<KernelChoice, 2> kKernels = {KernelChoice::kCpu, KernelChoice::kAten};

struct FormatPlay {
  int kv_heads = 4;
  KernelChoice kernel = KernelChoice::kCpu;
  Play play;
};
struct FormatCase {
  ScalarType dtype = ScalarType::kFloat32;
  std::string planner;
  int workers = 2;
  std::vector<FormatPlay> plays;
};

std::string name_of(const FormatPlay& format) {
  return fmt::format("{}_{}_{}", format.kv_heads == 4 ? "MHA" : "GQA",
                     format.kernel == KernelChoice::kCpu ? "cpu" : "aten", name_of(format.play));
}
std::string format_name(const ::testing::TestParamInfo<FormatCase>& info) {
  const FormatCase& c = info.param;
  return fmt::format("{}_{}_workers_{}{}", short_name(c.dtype), c.workers, c.planner,
                     c.plays.size() == 1 ? "_" + name_of(c.plays[0]) : "");
}

const Documents kMixed = both_ways("mixed", {1100, 333, 129, 238});

class FormatParityTest : public ::testing::TestWithParam<FormatCase> {
 protected:
  static void TearDownTestSuite() { differences.print("of the format's bound"); }
  static inline Differences differences;
};

TEST_P(FormatParityTest, loss_and_every_gradient_stay_within_the_formats_bound) {
  const FormatCase& c = GetParam();
  const double bound = format_bound(c.dtype);
  for (const FormatPlay& format : c.plays) {
    StepRun what{.model = small_llama(format.kv_heads, c.dtype),
                 .documents = kMixed,
                 .options = {.kernel = {.choice = format.kernel}}};
    const Outcome& one = one_worker(fmt::format("{} {} {}", short_name(c.dtype), format.kv_heads,
                                                static_cast<int>(format.kernel)),
                                    what);
    what.workers = c.workers;
    what.planner = c.planner;
    what.play = format.play;
    for (const bool wide : {false, true}) {
      what.options.wide_gradients = wide;
      const Outcome many = run(what);
      expect_same(many, one, bound, 0,
                  name_of(format.play) + (wide ? ", gradients in the accumulator's type" : ""));
      differences.add(fmt::format("{}_{}", short_name(c.dtype), name_of(format.play)),
                      largest_difference(many, one) / bound);
    }
  }
}

std::vector<FormatCase> format_pairs() {
  std::vector<FormatCase> cases;
  for (const std::vector<int>& row :
       covering_pairs({count_of(plays()), count_of(planners()), count_of(kFormats),
                       count_of(kFormatWorkers), count_of(kKvHeads), count_of(kKernels)})) {
    cases.push_back({.dtype = kFormats[row[2]],
                     .planner = planners()[row[1]].name,
                     .workers = kFormatWorkers[row[3]],
                     .plays = {{kKvHeads[row[4]], kKernels[row[5]], plays()[row[0]]}}});
  }
  return cases;
}

/// Every format, number of workers, way to plan, head count and kernel; of plays() six each, in
/// turn.
std::vector<FormatCase> format_grid() {
  constexpr int kPlaysEach = 6;
  std::vector<FormatCase> cases;
  int turn = 0;
  for (const ScalarType dtype : kFormats) {
    for (const int workers : kFormatWorkers) {
      for (const Planner& planner : planners()) {
        FormatCase& c = cases.emplace_back(
            FormatCase{.dtype = dtype, .planner = planner.name, .workers = workers});
        for (const int kv_heads : kKvHeads) {
          for (const KernelChoice kernel : kKernels) {
            for (int i = 0; i < kPlaysEach; ++i) {
              c.plays.push_back({kv_heads, kernel, plays()[turn++ % count_of(plays())]});
            }
          }
        }
        turn += kPlaysEach / 2;  // the next case's heads and kernels meet others
      }
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(formats, FormatParityTest, ::testing::ValuesIn(format_pairs()),
                         format_name);
INSTANTIATE_TEST_SUITE_P(full, FormatParityTest, ::testing::ValuesIn(format_grid()), format_name);

/// Other kernels of the same format: the roundings of both.
TEST(parity, every_kernel_and_number_of_threads_gives_the_same) {
  for (const ScalarType dtype : kFormats) {
    const double bound = 2 * format_bound(dtype);
    const auto with = [&](KernelChoice kernel, int threads) {
      return run({.model = small_llama(2, dtype),
                  .documents = kMixed,
                  .workers = 2,
                  .planner = "balanced",
                  .options = {.kernel = {.choice = kernel, .threads = threads}}});
    };
    const Outcome reference = with(KernelChoice::kReference, 1);
    const Outcome ours = with(KernelChoice::kCpu, 1);
    expect_same(ours, reference, bound, 0, "our own kernel");
    expect_same(with(KernelChoice::kAten, 1), reference, bound, 0, "ATen's");
    expect_same_bits(with(KernelChoice::kCpu, 3), ours, "three threads, the same bits");
  }
}

TEST(parity, a_window_gives_the_same_on_every_plan_and_schedule) {
  StepRun what{.model = small_llama(2, ScalarType::kFloat64), .documents = kMixed};
  what.model.sliding_window = 200;
  const Outcome one = run(what);
  StepRun many = what;
  many.workers = 3;
  size_t turn = 0;
  for (const Planner& planner : planners()) {
    many.planner = planner.name;
    for (const OverlapName& overlap : kOverlaps) {
      many.play = {overlap.overlap, turn % 2 == 1, servers()[turn % servers().size()]};
      ++turn;
      expect_same(run(many), one, 1e-10, 1e-12, planner.name + ", " + name_of(many.play));
    }
  }
  what.model.sliding_window = 0;
  EXPECT_GT(std::abs(run(what).loss - one.loss), 1e-3) << "the window hid nothing";
}

TEST(parity, windows_that_differ_by_layer_give_the_same_on_every_schedule) {
  StepRun what{.model = small_llama(2, ScalarType::kFloat64, 3), .documents = kMixed};
  what.model.sliding_window = 200;
  what.model.layer_types = {"sliding_attention", "full_attention", "sliding_attention"};
  const Outcome one = run(what);
  StepRun many = what;
  many.workers = 2;
  size_t turn = 0;
  for (const Play& play : plays()) {
    many.play = play;
    many.planner = turn++ % 3 == 0 ? "balanced_keys" : "balanced";
    expect_same(run(many), one, 1e-10, 1e-12, many.planner + ", " + name_of(play));
  }
  for (const auto& types :
       {std::vector<std::string>{"sliding_attention", "sliding_attention", "full_attention"},
        std::vector<std::string>{}}) {
    what.model.layer_types = types;
    EXPECT_GT(std::abs(run(what).loss - one.loss), 1e-3) << "another layer's window is the same";
  }
}

TEST(parity, ranks_as_threads_on_one_gpu_give_the_cpus_result) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device on this machine";
  StepRun what{.model = small_llama(2, ScalarType::kFloat64),
               .documents = both_ways("gpu", {700, 300, 129})};
  const Outcome cpu = run(what);
  what.workers = 3;
  what.planner = "greedy";
  what.device = cuda_thread_device(0);
  for (const Play& play : plays()) {
    what.play = play;
    expect_same(run(what), cpu, 1e-10, 1e-12, name_of(play));
  }
}

}  // namespace
}  // namespace distca::parity
