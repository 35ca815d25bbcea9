#include "cli/profile_measure.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "distca/base/clock.h"
#include "distca/base/machine.h"
#include "distca/base/random.h"
#include "distca/kernels/cpu/peak.h"
#include "distca/runtime/attention_tensors.h"

namespace distca::cli {
namespace {

constexpr int64_t kLeastTokens = 16;  // first point of the grid
constexpr size_t kMostRounds = 25;
constexpr size_t kCheckedTasks = 10;
constexpr double kPeakSeconds = 0.1;

/// A document in memory, whose tasks are run as the runtime runs them.
class Bench {
 public:
  Bench(const ProfileArguments& arguments, AttentionKernel& kernel)
      : kernel_(kernel),
        threads_(arguments.threads),
        type_(kernel.type()),
        tensors_(kernel.shape(), type_, arguments.max_tokens, arguments.max_tokens) {}

  /// One call of forward and one of backward.
  void measure(MeasuredTask& task) {
    tensors_.list.tasks = {
        {.q_row = task.q.begin,
         .q_tokens = task.q.size(),
         .q_position = task.q.begin,
         .keys = {{.row = task.kv.begin, .tokens = task.kv.size(), .position = task.kv.begin}}}};
    task.forward_ns.push_back(nanoseconds([&] { kernel_.forward(type_, tensors_.list); }));
    task.backward_ns.push_back(nanoseconds([&] { kernel_.backward(tensors_.list); }));
  }

 private:
  /// One thread's own processor time, which the turns of other programs do not lengthen; the time
  /// that passes where there are several threads.
  template <typename Call>
  int64_t nanoseconds(Call call) const {
    const auto now = threads_ == 1 ? thread_processor_seconds : steady_seconds;
    const double begin_s = now();
    call();
    return std::max<int64_t>(1, std::llround(1e9 * (now() - begin_s)));
  }

  AttentionKernel& kernel_;
  int threads_;
  ScalarType type_;
  AttentionTensors tensors_;
};

}  // namespace

std::vector<int64_t> grid_tokens(int64_t least_tokens, int64_t max_tokens) {
  std::vector<int64_t> tokens;
  for (int64_t t = least_tokens; t < max_tokens; t *= 2) tokens.push_back(t);
  tokens.push_back(max_tokens);
  return tokens;
}

ScalarType type_of(const ProfileArguments& arguments) {
  return scalar_type(arguments.dtype).value();
}

AttentionShape shape_of(const ProfileArguments& arguments) {
  return {.num_heads = arguments.heads,
          .num_kv_heads = arguments.kv_heads,
          .head_dim_qk = arguments.head_dim,
          .head_dim_v = arguments.head_dim,
          .type = type_of(arguments)};
}

KernelRequest request_of(const ProfileArguments& arguments) {
  return {.choice = kernel_choice(arguments.kernel),
          .shape = {.num_heads = arguments.heads,
                    .num_kv_heads = arguments.kv_heads,
                    .head_dim_qk = arguments.head_dim,
                    .head_dim_v = arguments.head_dim,
                    .softmax_scale = 1 / std::sqrt(static_cast<double>(arguments.head_dim))},
          .type = type_of(arguments),
          .threads = arguments.threads,
          .cuda_device = arguments.on_cuda() ? 0 : -1};
}

int64_t fastest(const std::vector<int64_t>& calls) { return *std::ranges::min_element(calls); }

std::vector<MeasuredTask> grid_tasks(int64_t max_tokens) {
  const std::vector<int64_t> tokens = grid_tokens(kLeastTokens, max_tokens);
  std::vector<MeasuredTask> tasks;
  for (const int64_t q : tokens) {
    for (const int64_t kv : tokens) {
      if (q <= kv) tasks.push_back({.q = {kv - q, kv}, .kv = {0, kv}});
    }
  }
  return tasks;
}

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

size_t measure_rounds(const ProfileArguments& arguments, AttentionKernel& kernel,
                      std::vector<MeasuredTask>& tasks) {
  Bench bench(arguments, kernel);
  const Stopwatch watch;
  for (size_t round = 0; round < kMostRounds; ++round) {
    for (MeasuredTask& task : tasks) {
      if (round > 0 && watch.seconds() > arguments.seconds) return round;
      bench.measure(task);
    }
  }
  return kMostRounds;
}

double measured_peak(const ProfileArguments& arguments) {
  return kernels::measured_peak_gflops(kernels::chosen_isa(), type_of(arguments), kPeakSeconds,
                                       arguments.threads);
}

AttentionProfile to_profile(const ProfileArguments& arguments, const std::string& kernel,
                            double peak_gflops, std::span<const MeasuredTask> measured) {
  const std::vector<int64_t> tokens = grid_tokens(kLeastTokens, arguments.max_tokens);
  AttentionProfile profile{.machine = cpu_name(),
                           .path = arguments.threads == 1
                                       ? kernel
                                       : fmt::format("{}, {} threads", kernel, arguments.threads),
                           .shape = shape_of(arguments),
                           .q_tokens = tokens,
                           .kv_tokens = tokens,
                           .peak_mflops = std::llround(peak_gflops * 1000)};
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

}  // namespace distca::cli
