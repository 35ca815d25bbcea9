// distca profile: how long core attention takes on this machine, as a profile that plans balance by
// (docs/profile_format.md).

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/finite_range.h"
#include "cli/verbs.h"
#include "distca/base/build_info.h"
#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/random.h"
#include "distca/base/text.h"
#include "distca/comm/aten_types.h"
#include "distca/cost/task_price.h"
#include "distca/runtime/aten_attention.h"

namespace distca::cli {
namespace {

constexpr int64_t kLeastTokens = 16;  // first point of the grid
constexpr int64_t kMostMeasuredTokens = 1 << 20;
constexpr int kCpu = -1;
constexpr size_t kRounds = 5;  // wanted of each point
constexpr size_t kMostRounds = 25;
constexpr size_t kCheckedTasks = 10;

struct ProfileArguments {
  bool attention = false;
  int64_t heads = 4;
  int64_t kv_heads = 1;
  int64_t head_dim = 128;
  std::string dtype = "bf16";
  int64_t max_tokens = 4096;
  int threads = 1;
  double seconds = 60;
  std::filesystem::path out;
};

/// Queries x keys of a document of `max_tokens` tokens.
struct MeasuredTask {
  Range q, kv;
  std::vector<int64_t> forward_ns = {}, backward_ns = {};  // a call each
};

ScalarType scalar_type(const std::string& name) {
  return name == "fp64"   ? ScalarType::kFloat64
         : name == "fp32" ? ScalarType::kFloat32
                          : ScalarType::kBFloat16;
}

AttentionShape shape_of(const ProfileArguments& arguments) {
  return {.num_heads = arguments.heads,
          .num_kv_heads = arguments.kv_heads,
          .head_dim_qk = arguments.head_dim,
          .head_dim_v = arguments.head_dim,
          .element_bytes = element_bytes(scalar_type(arguments.dtype))};
}

std::string cpu_model() {
  std::ifstream facts("/proc/cpuinfo");
  for (std::string line; std::getline(facts, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

/// A document in memory, whose tasks are run as the runtime runs them.
class Bench {
 public:
  explicit Bench(const ProfileArguments& arguments)
      : threads_(arguments.threads),
        type_(scalar_type(arguments.dtype)),
        shape_{.num_heads = arguments.heads,
               .num_kv_heads = arguments.kv_heads,
               .head_dim_qk = arguments.head_dim,
               .head_dim_v = arguments.head_dim,
               .softmax_scale = 1 / std::sqrt(static_cast<double>(arguments.head_dim))} {
    const int64_t tokens = arguments.max_tokens;
    const auto random = [&](int64_t heads, int64_t dim, ScalarType type) {
      return at::randn({tokens, heads, dim}, at::kFloat).to(aten_type(type));
    };
    const auto sums = type_ == ScalarType::kFloat64 ? ScalarType::kFloat64 : ScalarType::kFloat32;
    q_ = random(arguments.heads, arguments.head_dim, type_);
    d_o_ = random(arguments.heads, arguments.head_dim, type_);
    o_ = at::zeros_like(q_);
    k_ = random(arguments.kv_heads, arguments.head_dim, type_);
    v_ = random(arguments.kv_heads, arguments.head_dim, type_);
    delta_ = random(arguments.heads, 1, sums);
    lse_ = at::zeros_like(delta_);
    dq_ = at::zeros_like(q_, aten_type(sums));
    dk_ = at::zeros_like(k_, aten_type(sums));
    dv_ = at::zeros_like(v_, aten_type(sums));
  }

  /// One call of forward and one of backward.
  void measure(MeasuredTask& task) {
    const std::array<kernels::KeyFragment, 1> keys{{{.k = rows(k_, task.kv.begin),
                                                     .v = rows(v_, task.kv.begin),
                                                     .tokens = task.kv.size(),
                                                     .position = task.kv.begin}}};
    const kernels::ForwardTask forward{.q = rows(q_, task.q.begin),
                                       .o = rows(o_, task.q.begin),
                                       .lse = rows(lse_, task.q.begin),
                                       .q_tokens = task.q.size(),
                                       .q_position = task.q.begin,
                                       .keys = keys};
    const std::array<kernels::KeyGradient, 1> gradients{
        {{.dk = rows(dk_, task.kv.begin), .dv = rows(dv_, task.kv.begin)}}};
    const kernels::BackwardTask backward{.q = forward.q,
                                         .d_o = rows(d_o_, task.q.begin),
                                         .lse = forward.lse,
                                         .delta = rows(delta_, task.q.begin),
                                         .dq = rows(dq_, task.q.begin),
                                         .q_tokens = task.q.size(),
                                         .q_position = task.q.begin,
                                         .keys = keys,
                                         .key_gradients = gradients};
    task.forward_ns.push_back(nanoseconds([&] {
      aten_forward(shape_, type_, {&forward, 1}, kCpu);
    }));
    task.backward_ns.push_back(nanoseconds([&] {
      aten_backward(shape_, type_, {&backward, 1}, kCpu);
    }));
  }

 private:
  /// One thread's own processor time, which the turns of other programs do not lengthen; the time
  /// that passes where there are several threads.
  template <typename Call>
  int64_t nanoseconds(Call call) const {
    const clockid_t clock = threads_ == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    timespec begin{}, end{};
    clock_gettime(clock, &begin);
    call();
    clock_gettime(clock, &end);
    return std::max<int64_t>(
        1, (end.tv_sec - begin.tv_sec) * 1'000'000'000 + (end.tv_nsec - begin.tv_nsec));
  }
  static kernels::Rows rows(const at::Tensor& tensor, int64_t row) {
    return {.data = static_cast<std::byte*>(tensor.data_ptr()) +
                    row * tensor.stride(0) * static_cast<int64_t>(tensor.element_size()),
            .token_stride = tensor.stride(0),
            .head_stride = tensor.stride(1)};
  }

  int threads_;
  ScalarType type_;
  kernels::Shape shape_;
  at::Tensor q_, d_o_, o_, lse_, delta_, dq_, k_, v_, dk_, dv_;
};

/// Whatever else the machine does only adds time.
int64_t fastest(const std::vector<int64_t>& calls) { return *std::ranges::min_element(calls); }

/// One call of every task after another, so that a slow moment of the machine hits them all; until
/// the time is up or all have enough. Returns how many calls each task has, at least one.
size_t measure_rounds(const ProfileArguments& arguments, std::vector<MeasuredTask>& tasks) {
  Bench bench(arguments);
  const Stopwatch watch;
  for (size_t round = 0; round < kMostRounds; ++round) {
    for (MeasuredTask& task : tasks) {
      if (round > 0 && watch.seconds() > arguments.seconds) return round;
      bench.measure(task);
    }
  }
  return kMostRounds;
}

std::vector<int64_t> grid(int64_t max_tokens) {
  std::vector<int64_t> tokens;
  for (int64_t t = kLeastTokens; t < max_tokens; t *= 2) tokens.push_back(t);
  tokens.push_back(max_tokens);
  return tokens;
}

/// In the order of a profile's entries, without the unused ones.
std::vector<MeasuredTask> grid_tasks(const std::vector<int64_t>& tokens) {
  std::vector<MeasuredTask> tasks;
  for (const int64_t q : tokens) {
    for (const int64_t kv : tokens) {
      if (q <= kv) tasks.push_back({.q = {kv - q, kv}, .kv = {0, kv}});
    }
  }
  return tasks;
}

AttentionProfile to_profile(const ProfileArguments& arguments,
                            std::span<const MeasuredTask> measured) {
  const std::vector<int64_t> tokens = grid(arguments.max_tokens);
  AttentionProfile profile{.machine = cpu_model(),
                           .path = arguments.threads == 1
                                       ? "aten-cpu"
                                       : fmt::format("aten-cpu, {} threads", arguments.threads),
                           .shape = shape_of(arguments),
                           .q_tokens = tokens,
                           .kv_tokens = tokens};
  auto task = measured.begin();
  for (const int64_t q : tokens) {
    for (const int64_t kv : tokens) {
      profile.forward_ns.push_back(q > kv ? 0 : fastest(task->forward_ns));
      profile.backward_ns.push_back(q > kv ? 0 : fastest(task->backward_ns));
      if (q <= kv) ++task;
    }
  }
  return profile;
}

/// GFLOP/s of a matrix product: what this machine's attention could reach at best.
double measured_peak(const ProfileArguments& arguments) {
  constexpr int64_t kSize = 512;
  constexpr int kCalls = 10;
  const auto type = aten_type(scalar_type(arguments.dtype));
  const at::Tensor a = at::randn({kSize, kSize}, at::kFloat).to(type);
  const at::Tensor b = at::randn({kSize, kSize}, at::kFloat).to(type);
  at::Tensor product = at::mm(a, b);
  double fastest_s = 1e9;
  for (int call = 0; call < kCalls; ++call) {
    const Stopwatch watch;
    at::mm_out(product, a, b);
    fastest_s = std::min(fastest_s, watch.seconds());
  }
  return 2e-9 * kSize * kSize * kSize / fastest_s;
}

/// The highest GFLOP/s of one pass at any point.
double highest_rate(const AttentionProfile& profile, const std::vector<int64_t>& ns,
                    int64_t pair_flops) {
  double highest = 0;
  for (size_t i = 0; i < ns.size(); ++i) {
    const int64_t q = profile.q_tokens[i / profile.kv_tokens.size()];
    const int64_t kv = profile.kv_tokens[i % profile.kv_tokens.size()];
    if (q > kv) continue;
    const int64_t pairs = attention_pairs({kv - q, kv}, {0, kv}, MaskType::kCausal);
    highest =
        std::max(highest, static_cast<double>(pairs * pair_flops) / static_cast<double>(ns[i]));
  }
  return highest;
}

/// What the rates below are rates of, and of what limit.
void print_limit(const ProfileArguments& arguments, const AttentionProfile& profile,
                 int64_t forward_flops) {
  const double peak = measured_peak(arguments);
  const double forward = highest_rate(profile, profile.forward_ns, forward_flops);
  const double backward = highest_rate(profile, profile.backward_ns, forward_flops * 5 / 2);
  fmt::print("\n{}, {} thread{}, {}, distca {}\n", profile.machine, arguments.threads,
             arguments.threads == 1 ? "" : "s", arguments.dtype, build_info::kCommit);
  fmt::print(
      "FLOP: 2 x (head_dim_qk + head_dim_v) a query head and pair that the mask allows; "
      "backward 2.5 x forward\n");
  fmt::print(
      "limit: {:.1f} GFLOP/s of at::mm, 512 x 512 x 512; forward reaches {:.0f} % of it, "
      "backward {:.0f} %\n",
      peak, 100 * forward / peak, 100 * backward / peak);
}

/// GFLOP/s of one pass at every point; `pair_flops` of one (query, key) pair.
void print_rates(const char* title, const AttentionProfile& profile, const std::vector<int64_t>& ns,
                 int64_t pair_flops) {
  std::vector<std::string> header{"queries"};
  for (const int64_t kv : profile.kv_tokens) header.push_back(with_thousands(kv));
  Table table(header);
  for (size_t i = 0; i < profile.q_tokens.size(); ++i) {
    std::vector<std::string> row{with_thousands(profile.q_tokens[i])};
    for (size_t j = 0; j < profile.kv_tokens.size(); ++j) {
      const int64_t q = profile.q_tokens[i], kv = profile.kv_tokens[j];
      const int64_t time = ns[i * profile.kv_tokens.size() + j];
      const int64_t pairs = attention_pairs({kv - q, kv}, {0, kv}, MaskType::kCausal);
      row.push_back(time == 0 ? ""
                              : fmt::format("{:.1f}", static_cast<double>(pairs * pair_flops) /
                                                          static_cast<double>(time)));
    }
    table.add_row(row);
  }
  fmt::print("\n{}, GFLOP/s by queries and keys (the queries are the last of the keys)\n{}", title,
             table.to_string());
}

/// As plans cut them: at multiples of 128, every other one up to a document's end that is none;
/// every third with only the first of its keys.
std::vector<MeasuredTask> tasks_to_check(int64_t max_tokens) {
  constexpr int64_t kBlock = 128;
  Random random(1);
  const auto between = [&random](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random.below(static_cast<uint64_t>(most - least + 1)));
  };
  std::vector<MeasuredTask> tasks;
  while (tasks.size() < kCheckedTasks) {
    int64_t end = between(kBlock, max_tokens);
    if (tasks.size() % 2 == 0) end = round_down(end, kBlock);
    const int64_t begin = round_down(between(0, end - 1), kBlock);
    const int64_t keys =
        tasks.size() % 3 == 2 ? std::min(end, round_up(between(1, end), kBlock)) : end;
    tasks.push_back({.q = {begin, end}, .kv = {0, keys}});
  }
  return tasks;
}

void print_check(const AttentionProfile& profile, std::span<const MeasuredTask> tasks) {
  const TaskPrice price(profile.shape, &profile);
  Table table({"queries", "keys", "measured us", "predicted us", "error %"});
  std::vector<double> errors;
  for (const MeasuredTask& task : tasks) {
    const auto measured = static_cast<double>(fastest(task.forward_ns) + fastest(task.backward_ns));
    const auto predicted = static_cast<double>(price(task.q, task.kv));
    errors.push_back(100 * std::fabs(predicted / measured - 1));
    table.add_row({fmt::format("{} .. {}", task.q.begin, task.q.end),
                   fmt::format("{} .. {}", task.kv.begin, task.kv.end),
                   fmt::format("{:.0f}", measured / 1000), fmt::format("{:.0f}", predicted / 1000),
                   fmt::format("{:+.1f}", 100 * (predicted / measured - 1))});
  }
  std::sort(errors.begin(), errors.end());
  fmt::print("\nforward and backward of tasks as plans cut them, predicted from the grid\n{}",
             table.to_string());
  fmt::print("error: median {:.1f} %, worst {:.1f} %\n", errors[errors.size() / 2], errors.back());
}

void check_arguments(const ProfileArguments& arguments) {
  if (!arguments.attention) {
    throw Error(ErrorKind::kUsage, "profile: say what to measure: --attention");
  }
  if (arguments.heads % arguments.kv_heads != 0) {
    throw Error(ErrorKind::kUsage, "--heads {}: must be a multiple of --kv-heads {}",
                arguments.heads, arguments.kv_heads);
  }
  if (arguments.head_dim % 8 != 0) {
    throw Error(ErrorKind::kUsage, "--head-dim {}: must be a multiple of 8", arguments.head_dim);
  }
  const AttentionShape shape = shape_of(arguments);
  // Q, dO, O; K, V; the gradients of Q, K, V in up to 8 bytes; ATen's copies of all that.
  const int64_t token_bytes =
      (5 * shape.num_heads + 4 * shape.num_kv_heads) * 2 * shape.head_dim_qk * 8;
  const double bytes = static_cast<double>(token_bytes) * static_cast<double>(arguments.max_tokens);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  if (bytes > memory) {
    throw Error(ErrorKind::kUsage,
                "--max-tokens {} of this shape takes up to {}, more than this machine's {}",
                arguments.max_tokens, human_bytes(static_cast<int64_t>(bytes)),
                human_bytes(static_cast<int64_t>(memory)));
  }
}

void run_profile(const ProfileArguments& arguments) {
  check_arguments(arguments);
  AtomicFile file(arguments.out);  // before the minutes of measuring, not after
  at::set_num_threads(arguments.threads);
  // The tasks to predict are measured with the grid, under the same conditions.
  std::vector<MeasuredTask> tasks = grid_tasks(grid(arguments.max_tokens));
  const size_t grid_size = tasks.size();
  for (const MeasuredTask& task : tasks_to_check(arguments.max_tokens)) tasks.push_back(task);
  fmt::print("measuring {} tasks up to {} tokens, forward and backward, for at most {:g} s\n",
             tasks.size(), with_thousands(arguments.max_tokens), arguments.seconds);
  std::fflush(stdout);
  const size_t calls = measure_rounds(arguments, tasks);
  if (calls < kRounds) {
    fmt::print("the time sufficed for {} call{} of each task, {} are wanted: give more --seconds\n",
               calls, calls == 1 ? "" : "s", kRounds);
  }
  const std::span<const MeasuredTask> measured(tasks);
  const AttentionProfile profile = to_profile(arguments, measured.first(grid_size));
  file.write(profile_to_json(profile));
  file.commit();
  const AttentionShape& shape = profile.shape;
  const int64_t pair_flops = 2 * shape.num_heads * (shape.head_dim_qk + shape.head_dim_v);
  print_limit(arguments, profile, pair_flops);
  print_rates("forward", profile, profile.forward_ns, pair_flops);
  print_rates("backward", profile, profile.backward_ns, pair_flops * 5 / 2);
  print_check(profile, measured.subspan(grid_size));
  fmt::print("{}: {}\n", arguments.out.string(), profile_name(profile));
}

}  // namespace

void add_profile(CLI::App& app) {
  auto arguments = std::make_shared<ProfileArguments>();
  CLI::App* verb = app.add_subcommand("profile", "Measure this machine for plans");
  verb->add_flag("--attention", arguments->attention,
                 "Core attention, forward and backward, over a grid of queries and keys");
  const CLI::Range sizes(1, 1024);
  verb->add_option("--heads", arguments->heads, "Query heads of one rank")
      ->check(sizes)
      ->capture_default_str();
  verb->add_option("--kv-heads", arguments->kv_heads, "Key and value heads of one rank")
      ->check(sizes)
      ->capture_default_str();
  verb->add_option("--head-dim", arguments->head_dim, "Of queries, keys and values")
      ->check(sizes)
      ->capture_default_str();
  verb->add_option("--dtype", arguments->dtype, "Computed in")
      ->check(CLI::IsMember({"bf16", "fp32", "fp64"}))
      ->capture_default_str();
  verb->add_option("--max-tokens", arguments->max_tokens,
                   "Most queries and keys measured; beyond, plans go by pairs")
      ->check(CLI::Range(int64_t{128}, kMostMeasuredTokens))
      ->capture_default_str();
  verb->add_option("--threads", arguments->threads, "Of one call, as train.threads_per_rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb->add_option("--seconds", arguments->seconds,
                   "Most time, if one call of each task takes no longer")
      ->check(finite_range(0, 1e6))
      ->capture_default_str();
  verb->add_option("--out", arguments->out, "The profile (docs/profile_format.md)")->required();
  verb->footer(
      "Example:  distca profile --attention --heads 4 --kv-heads 2 --head-dim 64 --out "
      "profile.json");
  verb->callback([arguments] { run_profile(*arguments); });
}

}  // namespace distca::cli
