// Steps of the trainer whose messages are late at random (comm/late_messages_testing.h): whoever
// used a message's memory before its wait would compute other bits. Without a device, messages in
// host memory land when they are waited for; on a CUDA device, kernels that spin hold up streams.

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "distca/comm/device_stream.h"
#include "distca/comm/late_messages_testing.h"
#include "distca/program/program.h"
#include "tests/parity_testing.h"

namespace distca::parity {
namespace {

constexpr int kPlans = 100;
constexpr int64_t kMostDelayUs = 200;

/// The n-th of many different steps of a small model.
StepRun some_step(int n) {
  static const std::vector<Documents> documents = {
      both_ways("long_and_short", {300, 129, 40}),
      both_ways("odd", {1, 127, 130, 65, 3}),
      both_ways("one", {400}),
  };
  StepRun step{.model = small_llama(2, n % 2 == 0 ? ScalarType::kFloat32 : ScalarType::kBFloat16),
               .documents = documents[n % documents.size()],
               .workers = 2 + n % 3};
  step.planner = planners()[n % planners().size()].name;
  step.play = plays()[(n * 7) % plays().size()];
  return step;
}

/// Steps on a device are reproducible bit for bit while this lives.
struct DeterministicBits {
  DeterministicBits() {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ~DeterministicBits() {
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  }
};

TEST(LateMessagesStep, a_hundred_plans_keep_their_bits) {
  for (int n = 0; n < kPlans; ++n) {
    StepRun step = some_step(n);
    const Outcome in_time = run(step);
    step.device = testing::late_messages(static_cast<uint64_t>(n), n % 4 == 0 ? 1 : 0.5);
    expect_same_bits(run(step), in_time,
                     fmt::format("{}: {}, {}", n, step.planner, name_of(step.play)));
  }
}

TEST(LateMessagesStep, a_hundred_plans_keep_their_bits_on_a_cuda_device) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device on this machine";
  const DeterministicBits bits;
  for (int n = 0; n < kPlans; ++n) {
    StepRun step = some_step(n);
    step.device = cuda_thread_device(0);
    const Outcome in_time = run(step);
    step.device = testing::with_random_delays(step.device, testing::cuda_streams(0),
                                              static_cast<uint64_t>(n), kMostDelayUs);
    expect_same_bits(run(step), in_time,
                     fmt::format("{}: {}, {}", n, step.planner, name_of(step.play)));
  }
}

// --- waits that are left out --------------------------------------------------------------------

/// Communications of a rank's program whose messages others of its operations wait for; without
/// those of summed gradients, for which only the update waits that these steps refuse.
std::set<int32_t> awaited(const Program& program, bool sends) {
  std::set<int32_t> found;
  for (const Op& op : program.ops) {
    for (const int32_t other : sends ? op.wait_sends : op.wait_for) {
      const Op& of = program.ops[other];
      if (of.stream != Stream::kComm || of.kind == OpKind::kGradGather) continue;
      if (!(sends ? program.sends(of) : program.receives(of)).empty()) found.insert(other);
    }
  }
  return found;
}

/// Leaves out every wait of the rank for this communication: it is over only at the step's end. Who
/// waits until sends have left waits for what is received, too.
void forget(Program& program, int32_t communication, bool sends) {
  for (Op& op : program.ops) {
    std::erase(op.wait_sends, communication);
    if (!sends) std::erase(op.wait_for, communication);
  }
}

void dawdle() { std::this_thread::sleep_for(std::chrono::microseconds(300)); }

StepRun uneven_step(Overlap overlap) {
  StepRun step{.model = small_llama(2, ScalarType::kFloat32),
               .documents = both_ways("uneven", {300, 40}),
               .workers = 2};
  step.planner = "greedy";
  step.play.overlap = overlap;
  return step;
}

bool has_bits_of(const Outcome& got, const Outcome& right) {
  bool same = got.loss == right.loss;
  for (size_t i = 0; i < right.gradients.size(); ++i)
    same = same && at::equal(got.gradients[i], right.gradients[i]);
  return same;
}

/// Returns true if the step ends with an error or with other bits than `right`.
bool shows(StepRun step, const Outcome& right) {
  try {
    return !has_bits_of(run(step), right);
  } catch (const std::exception&) {
    return true;
  }
}

/// The number of communications whose waits can be left out, and of those where that shows.
struct Count {
  int of = 0, shown = 0;
};
Count forget_each(Overlap overlap, bool sends) {
  constexpr int kRank = 0;
  StepRun step = uneven_step(overlap);
  std::set<int32_t> candidates;
  step.change = [&](std::vector<StepInput>& inputs) {
    candidates = awaited(inputs[kRank].program, sends);
  };
  const Outcome right = run(step);
  if (sends) {  // the receiver is slow, so that what was sent is still under way when memory is
                // reused
    step.watch = [](int rank, Step& played) {
      if (rank != kRank) played.set_watch([](const Op&, bool) { dawdle(); });
      return nullptr;
    };
  }
  Count count;
  for (const int32_t communication : candidates) {
    step.change = [&](std::vector<StepInput>& inputs) {
      forget(inputs[kRank].program, communication, sends);
    };
    step.device = testing::late_messages(static_cast<uint64_t>(communication), 1);
    ++count.of;
    count.shown += shows(step, right) ? 1 : 0;
  }
  return count;
}

TEST(LateMessagesStep, every_wait_for_what_is_received_shows_when_it_is_left_out) {
  for (const OverlapName& overlap : kOverlaps) {
    const Count count = forget_each(overlap.overlap, /*sends=*/false);
    EXPECT_GT(count.of, 8) << overlap.name;
    EXPECT_EQ(count.shown, count.of) << overlap.name;
  }
}

/// Nothing that a rank gives the device waits for messages. All else is as ever, so nothing throws.
TEST(LateMessagesStep, waits_that_are_left_out_show_on_a_cuda_device) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device on this machine";
  const DeterministicBits bits;
  constexpr int64_t kLongDelayUs = 2000;
  for (const OverlapName& overlap : kOverlaps) {
    StepRun step = uneven_step(overlap.overlap);
    step.device = cuda_thread_device(0);
    const Outcome right = run(step);
    step.device = testing::with_random_delays(step.device, testing::cuda_streams(0), /*seed=*/1,
                                              kLongDelayUs);
    step.device.follow = [](const DeviceMark&) {};
    EXPECT_FALSE(has_bits_of(run(step), right)) << overlap.name;
    c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(0);  // copies that nobody awaited
  }
}

TEST(LateMessagesStep, waits_for_what_is_sent_show_when_they_are_left_out) {
  // A send whose memory is not written again in the step shows nothing.
  Count count;
  for (const OverlapName& overlap : kOverlaps) {
    const Count of_one = forget_each(overlap.overlap, /*sends=*/true);
    count.of += of_one.of, count.shown += of_one.shown;
  }
  EXPECT_GT(count.of, 8);
  EXPECT_GT(count.shown, 0);
}

}  // namespace
}  // namespace distca::parity
