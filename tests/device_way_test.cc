// Steps whose tensors lie on a CPU and are treated as those of a device are (comm/as_on_device.h):
// what they compute, and when the host would wait for the device.

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "distca/base/error.h"
#include "distca/comm/as_on_device.h"
#include "distca/comm/host_read.h"
#include "tests/parity_testing.h"

namespace distca::parity {
namespace {

StepRun on_three_workers(ScalarType dtype, KernelChoice kernel) {
  return {.model = small_llama(2, dtype),
          .documents = {"four", {{700, 129, 40}, {300, 128, 33}, {511, 60}, {900}}},
          .workers = 3,
          .planner = "balanced",
          .play = {.overlap = Overlap::kPingPong},
          .options = {.kernel = {.choice = kernel}}};
}

std::shared_ptr<void> as_on_device_here(int, Step&) { return std::make_shared<AsOnDevice>(); }

TEST(device_way, rows_move_otherwise_and_every_bit_is_the_same) {
  constexpr std::array kTypes = {ScalarType::kFloat32, ScalarType::kBFloat16};
  constexpr std::array kPlanners = {"balanced", "balanced_keys", "greedy_cut"};
  size_t next = 0;  // types and planners take turns
  for (const Play& play : plays()) {
    StepRun step = on_three_workers(kTypes[next % kTypes.size()], KernelChoice::kCpu);
    step.planner = kPlanners[next++ % kPlanners.size()];
    step.play = play;
    const Outcome want = run(step);
    step.watch = as_on_device_here;
    expect_same_bits(run(step), want, step.planner + ", " + name_of(play));
  }
}

TEST(device_way, through_stand_ins_of_the_devices_operators_a_step_gives_the_same) {
  constexpr std::array kTypes = {ScalarType::kFloat32, ScalarType::kBFloat16, ScalarType::kFloat64,
                                 ScalarType::kBFloat16};
  constexpr std::array kPlanners = {"greedy", "balanced_keys", "greedy_cut"};
  size_t next = 0;
  for (const Play& play : plays()) {
    const ScalarType type = kTypes[next % kTypes.size()];
    StepRun step = on_three_workers(type, KernelChoice::kAten);
    step.planner = kPlanners[next++ % kPlanners.size()];
    step.play = play;
    const Outcome want = run(step);
    step.watch = as_on_device_here;
    expect_same(run(step), want, format_bound(type), 0, step.planner + ", " + name_of(play));
  }
}

TEST(device_way, an_evaluation_has_the_same_bits) {
  StepRun step = on_three_workers(ScalarType::kBFloat16, KernelChoice::kCpu);
  step.evaluate = true;
  const double want = run(step).loss;
  step.watch = as_on_device_here;
  EXPECT_EQ(run(step).loss, want);
}

/// One rank's events and reads in a step, in seconds of one clock.
struct Watched {
  TraceRecorder recorder;
  AsOnDevice as_on_device;
  HostReadLog reads;
};

TEST(device_way, the_host_reads_nothing_between_the_first_and_the_last_layer) {
  for (const auto& [workers, dedicated] : {std::pair(3, 0), std::pair(1, 0), std::pair(2, 1)}) {
    StepRun step = on_three_workers(ScalarType::kBFloat16, KernelChoice::kCpu);
    step.workers = workers;
    if (dedicated > 0) step.play.servers = servers("one_dedicated");
    std::mutex mutex;
    int ranks = 0;
    step.watch = [&](int rank, Step& played) {
      const auto look = [&mutex, &ranks, rank, workers](Watched* watched) {
        double first_s = 1e300, last_s = 0;
        for (const TraceEvent& event : watched->recorder.events()) {
          if (event.layer < 0 || event.kind != TraceKind::kCompute) continue;
          first_s = std::min(first_s, event.begin_s);
          last_s = std::max(last_s, event.end_s);
        }
        const std::scoped_lock lock(mutex);
        ++ranks;
        EXPECT_LT(first_s, last_s);
        const std::vector<double>& reads = watched->reads.seconds();
        // The host reads the losses, and then the squares of all gradients, for their norm.
        EXPECT_EQ(reads.size(), rank < workers ? 2u : 0u);
        for (const double at_s : reads) EXPECT_TRUE(at_s < first_s || at_s > last_s);
        delete watched;
      };
      const std::shared_ptr<Watched> watched(new Watched, look);
      played.set_recorder(&watched->recorder);
      return watched;
    };
    run(step);
    EXPECT_EQ(ranks, workers + dedicated);
  }
}

/// Host memory in a device's place: full once this thread has asked so often.
class FullMemory final : public c10::Allocator {
 public:
  explicit FullMemory(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, times_left-- > 0,
                     "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
                     "of 79.10 GiB of which 1.00 GiB is free. Including non-PyTorch memory, ...");
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  static inline thread_local int64_t times_left = INT64_MAX;

 private:
  c10::Allocator* inner_;
};

TEST(device_way, a_device_without_memory_ends_the_step_with_the_rank_and_the_operation) {
  c10::Allocator* const usual = c10::GetCPUAllocator();
  FullMemory memory(usual);
  c10::SetCPUAllocator(&memory, /*priority=*/1);
  StepRun step = on_three_workers(ScalarType::kBFloat16, KernelChoice::kCpu);
  step.watch = [](int rank, Step&) {
    FullMemory::times_left = rank == 1 ? 200 : INT64_MAX;
    return nullptr;
  };
  try {
    run(step);
    ADD_FAILURE() << "it has had enough memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_THAT(
        error.what(),
        ::testing::MatchesRegex(
            "rank 1 ran out of its device's memory in (for|back)ward [a-z0-9_ -]+ \\(CUDA out of "
            "memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
            "of which 1.00 GiB is free\\): lower batch.nano_batch_tokens or "
            "plan.max_memory_gib, or set train.recompute = full"));
  }
  c10::SetCPUAllocator(usual, /*priority=*/1);
}

}  // namespace
}  // namespace distca::parity
