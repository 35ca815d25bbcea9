// The host must not wait for a CUDA device between the first and the last layer of a step: there,
// PyTorch's own check of calls that wait is set to raise an error. It sees what an operator of
// PyTorch's does inside, which the log of our reads (device_way_test.cc) does not. It holds for the
// whole process, so all ranks enter their layers together and leave them together.

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/as_on_device.h"
#include "distca/comm/device_stream.h"
#include "distca/comm/host_read.h"
#include "tests/parity_testing.h"

namespace distca::parity {
namespace {

/// Calls `set(true)` once all ranks have come to the first operation of their first layer, and
/// `set(false)` once all have done the last one of their last layer, or issued it.
class LayerWindow {
 public:
  explicit LayerWindow(std::function<void(bool)> set) : set_(std::move(set)) {}

  /// Watches `step` whenever it is played from now on.
  void look_at(StepRun& step) {
    step.change = [this](std::vector<StepInput>& inputs) {
      left_.clear();
      for (const StepInput& input : inputs) {
        left_.push_back(std::ranges::count_if(input.program.ops, is_of_layer));
      }
      begun_.assign(inputs.size(), 0);
    };
  }
  OpWatch watch(int rank) {
    return [this, rank](const Op& op, bool is_over) {
      if (!is_of_layer(op)) return;
      if (!is_over && begun_[rank]++ == 0) meet(rank, true);
      if (is_over && --left_[rank] == 0) meet(rank, false);
    };
  }

 private:
  static bool is_of_layer(const Op& op) { return op.layer >= 0; }

  void meet(int rank, bool on) {
    constexpr auto kPatience = std::chrono::seconds(300);
    std::unique_lock lock(mutex_);
    const int meeting = meetings_;
    if (++here_ == static_cast<int>(left_.size())) {
      here_ = 0;
      ++meetings_;
      set_(on);
      changed_.notify_all();
      return;
    }
    const bool met = changed_.wait_for(lock, kPatience, [&] { return meetings_ != meeting; });
    DISTCA_THROW_IF(!met, ErrorKind::kComm, "rank {} waited 300 s for {} other ranks to {} layers",
                    rank, static_cast<int>(left_.size()) - here_, on ? "begin" : "end");
  }

  const std::function<void(bool)> set_;
  std::vector<int64_t> left_, begun_;  // [rank] operations of layers
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0, meetings_ = 0;
};

/// A few steps: every fifth way to play one, in both formats.
std::vector<StepRun> some_steps() {
  std::vector<StepRun> steps;
  constexpr size_t kStride = 5;
  for (size_t i = 0; i < plays().size(); i += kStride) {
    const bool even = steps.size() % 2 == 0;
    steps.push_back({.model = small_llama(2, even ? ScalarType::kBFloat16 : ScalarType::kFloat32),
                     .documents = both_ways("two", {300, 129, 40}),
                     .workers = 3,
                     .planner = even ? "balanced_keys" : "greedy",
                     .play = plays()[i]});
  }
  return steps;
}

/// One rank's events and reads in a step that is treated as on a device, in seconds of one clock.
struct WatchedOps {
  TraceRecorder recorder;
  AsOnDevice as_on_device;
  HostReadLog reads;
};

TEST(layer_sync, the_check_holds_while_all_ranks_are_in_their_layers_and_no_longer) {
  for (StepRun& step : some_steps()) {
    std::vector<std::pair<bool, double>> set;
    LayerWindow window([&](bool on) { set.emplace_back(on, steady_seconds()); });
    window.look_at(step);
    std::mutex mutex;
    double first_s = 1e300, last_s = 0;
    std::vector<double> reads;
    step.watch = [&](int rank, Step& played) {
      const std::shared_ptr<WatchedOps> watched(new WatchedOps, [&](WatchedOps* of) {
        const std::scoped_lock lock(mutex);
        for (const TraceEvent& event : of->recorder.events()) {
          if (event.layer < 0 || event.kind != TraceKind::kCompute) continue;
          first_s = std::min(first_s, event.end_s);
          last_s = std::max(last_s, event.begin_s);
        }
        std::ranges::copy(of->reads.seconds(), std::back_inserter(reads));
        delete of;
      });
      played.set_recorder(&watched->recorder);
      played.set_watch(window.watch(rank));
      return watched;
    };
    run(step);
    const std::string which = name_of(step.play);
    ASSERT_EQ(set.size(), 2u) << which;
    EXPECT_TRUE(set[0].first && !set[1].first) << which;
    EXPECT_LT(set[0].second, first_s) << which;
    EXPECT_GT(set[1].second, last_s) << which;
    EXPECT_EQ(reads.size(), 2u * static_cast<size_t>(step.workers)) << which;
    for (const double at_s : reads)
      EXPECT_TRUE(at_s < set[0].second || at_s > set[1].second) << which;
  }
}

/// c10::cuda::warning_state() and warn_or_error_on_sync() of c10/cuda/CUDAFunctions.h, found by
/// name: no header of CUDA is needed. Null where PyTorch has no CUDA.
struct SyncCheck {
  enum Mode : int { kOff = 0, kError = 2 };  // values of c10::cuda::SyncDebugMode
  int* const mode =
      static_cast<int*>(dlsym(RTLD_DEFAULT, "_ZZN3c104cuda13warning_stateEvE14warning_state_"));
  void (*const look)() =
      reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "_ZN3c104cuda21warn_or_error_on_syncEv"));

  ~SyncCheck() {
    if (mode) *mode = kOff;
  }
  void set(bool on) const { *mode = on ? kError : kOff; }
};

TEST(layer_sync, pytorchs_check_is_found_by_its_name) {
  const SyncCheck check;
  if (!check.look) GTEST_SKIP() << "this PyTorch has no CUDA";
  ASSERT_NE(check.mode, nullptr);
  EXPECT_EQ(*check.mode, SyncCheck::kOff);
  check.set(true);
  EXPECT_THROW(check.look(), c10::Error);
  check.set(false);
}

/// Deterministic operators, the default of a training, or the others.
class LayerSync : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    at::globalContext().setDeterministicAlgorithms(GetParam(), /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};
INSTANTIATE_TEST_SUITE_P(deterministic, LayerSync, ::testing::Bool());

TEST_P(LayerSync, the_host_does_not_wait_for_a_cuda_device_between_the_layers) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device on this machine";
  const SyncCheck check;
  ASSERT_TRUE(check.mode && check.look);
  const at::Tensor one = at::ones({1}, at::TensorOptions(at::kCUDA));
  check.set(true);
  EXPECT_THROW(host_number(one), c10::Error) << "the check finds nothing";
  check.set(false);
  for (StepRun& step : some_steps()) {
    step.device = cuda_thread_device(0);
    run(step);  // loads and sets up what the device needs once
    LayerWindow window([&](bool on) { check.set(on); });
    window.look_at(step);
    step.watch = [&](int rank, Step& played) {
      played.set_watch(window.watch(rank));
      return nullptr;
    };
    EXPECT_NO_THROW(run(step)) << name_of(step.play);
    check.set(false);
  }
}

}  // namespace
}  // namespace distca::parity
