// Measures core attention on a CUDA device for `distca profile --attention --device cuda`, with
// each kernel that could compute it.

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "cli/profile_measure.h"
#include "distca/base/error.h"
#include "distca/base/machine.h"
#include "distca/base/text.h"
#include "distca/comm/device_stream.h"
#include "distca/runtime/attention_tensors.h"
#include "distca/runtime/cuda/compiled_kernels.h"
#include "distca/runtime/cuda/kernel_profiles.h"
#include "distca/runtime/cuda/task_launches.h"

namespace distca::cli {
namespace {

constexpr int kDevice = 0;
constexpr int64_t kLeastShard = 128;              // a shard of a plan
constexpr int64_t kCallQueries = 32768;           // queries of the equal tasks of a call together
constexpr int64_t kCallBytes = int64_t{4} << 30;  // bytes of their keys and values
constexpr double kLeastSeconds = 0.02;            // the calls of a round take so long
constexpr int kMostCalls = 256;                   // in a round

/// Equal tasks, as many as a call may have: a task is timed among others.
class EqualTasks {
 public:
  EqualTasks(const AttentionKernel& kernel, int64_t queries, int64_t keys)
      : count_(std::max<int64_t>(
            1, std::min(kCallQueries / queries, kCallBytes / (keys * bytes_of_a_key(kernel))))),
        tensors_(kernel.shape(), kernel.type(), count_ * queries, count_ * keys,
                 aten_device(kDevice)) {
    for (int64_t i = 0; i < count_; ++i) {
      tensors_.list.tasks.push_back({.q_row = i * queries,
                                     .q_tokens = queries,
                                     .q_position = keys - queries,
                                     .keys = {{.row = i * keys, .tokens = keys}}});
    }
  }

  /// Nanoseconds of a task in the fastest of `rounds` rounds of some calls.
  int64_t forward_ns(AttentionKernel& kernel, int rounds) {
    TaskLaunches launches;
    return fastest(rounds, [&] { kernel.forward(kernel.type(), tensors_.list, &launches); });
  }
  int64_t backward_ns(AttentionKernel& kernel, int rounds) {
    TaskLaunches launches;
    return fastest(rounds, [&] { kernel.backward(tensors_.list, &launches); });
  }

 private:
  /// K and V.
  static int64_t bytes_of_a_key(const AttentionKernel& kernel) {
    const kernels::Shape& shape = kernel.shape();
    return shape.num_kv_heads * (shape.head_dim_qk + shape.head_dim_v) *
           element_bytes(kernel.type());
  }
  /// On the device, by events of its stream: what the host takes to give it the calls hides under
  /// those before, as in a step.
  int64_t fastest(int rounds, const std::function<void()>& call) const {
    const c10::Stream stream = current_stream(aten_device(kDevice));
    const auto seconds = [&](int calls) {
      c10::Event begin(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
      c10::Event end(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
      begin.record(stream);
      for (int i = 0; i < calls; ++i) call();
      end.record(stream);
      end.synchronize();
      return 1e-3 * begin.elapsedTime(end) / calls;
    };
    seconds(1);  // loads the kernel
    double best = seconds(1);
    const int calls = static_cast<int>(std::clamp(kLeastSeconds / best, 1.0, 1.0 * kMostCalls));
    for (int round = 0; round < rounds; ++round) best = std::min(best, seconds(calls));
    return std::max<int64_t>(1, std::llround(best * 1e9 / static_cast<double>(count_)));
  }

  int64_t count_;
  AttentionTensors tensors_;
};

AttentionProfile measured(const ProfileArguments& arguments, AttentionKernel& kernel, int rounds) {
  AttentionProfile profile{.machine = gpu_name(),
                           .path = kernel.name(),
                           .shape = shape_of(arguments),
                           .q_tokens = grid_tokens(kLeastShard, arguments.max_tokens)};
  profile.kv_tokens = profile.q_tokens;
  for (const int64_t q : profile.q_tokens) {
    for (const int64_t kv : profile.kv_tokens) {
      std::optional<EqualTasks> tasks;
      if (q <= kv) tasks.emplace(kernel, q, kv);
      profile.forward_ns.push_back(tasks ? tasks->forward_ns(kernel, rounds) : 0);
      profile.backward_ns.push_back(tasks ? tasks->backward_ns(kernel, rounds) : 0);
    }
  }
  return profile;
}

}  // namespace

AttentionProfile profile_on_device(const ProfileArguments& arguments) {
  DISTCA_THROW_IF(!at::hasCUDA(), ErrorKind::kUsage,
                  "--device cuda: this PyTorch or this machine has none");
  constexpr int kRounds = 3;
  // The default of distca train. Kernels differ in what that costs them.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  KernelRequest request = request_of(arguments);
  const bool measures_both = request.choice == KernelChoice::kAuto;
  if (measures_both) request.choice = KernelChoice::kAten;
  AttentionKernel kernel(request);
  std::unique_ptr<AttentionKernel> flash4;
  if (measures_both) {
    const std::string reason = find_compiled_kernels(request.shape, request.type, kDevice).reason;
    request.choice = KernelChoice::kFa4;
    if (reason.empty()) flash4 = std::make_unique<AttentionKernel>(request);
    if (!reason.empty()) fmt::print("FlashAttention 4 is not measured: {}\n", reason);
  }
  fmt::print("measuring tasks of {} to {} tokens with {}{}, forward and deterministic backward\n",
             kLeastShard, with_thousands(arguments.max_tokens), kernel.name(),
             flash4 ? " and " + flash4->name() : "");
  std::fflush(stdout);
  const AttentionProfile profile = measured(arguments, kernel, kRounds);
  return flash4 ? fastest_kernels(profile, measured(arguments, *flash4, kRounds)) : profile;
}

}  // namespace distca::cli
