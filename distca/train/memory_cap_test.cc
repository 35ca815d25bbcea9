#include "distca/forecast/memory_cap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "distca/base/error.h"
#include "distca/comm/thread_group.h"
#include "distca/forecast/dry_run.h"
#include "distca/train/check_run.h"
#include "distca/train/resume.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

constexpr int64_t kGib = int64_t{1} << 30;

Config on_devices(std::vector<std::string> overrides, const std::string& backend = "nccl") {
  for (const std::string& word :
       {std::string("train.device=cuda"), "comm.backend=" + backend,
        std::string("model.dtype=bfloat16"), std::string("batch.max_document_tokens=8192")})
    overrides.push_back(word);
  return load_config("", overrides);
}

/// A batch of documents as long as they may be.
Batch batch_of(const Config& config) {
  return BatchStream({config.batch.max_document_tokens}, config.batch).next();
}

int64_t cap_of(const Config& config, const std::vector<DeviceFacts>& devices, int workers = 2) {
  return device_cap(config, plan_nano_batches(config, batch_of(config), workers), workers,
                    {.count = workers}, devices);
}

TEST(DeviceCap, is_what_a_device_has_without_the_reserve_and_what_else_stands) {
  const Config config = on_devices({});
  const int64_t cap = cap_of(config, {{80 * kGib, 132}});
  EXPECT_EQ(cap % kDeviceCapUnit, 0);
  const double usable = 0.95 * 80 * kGib - kDeviceReserve;
  const double free_bytes = usable - static_cast<double>(cap);
  const double standing = standing_memory(config, 2, {}).total();
  EXPECT_GT(free_bytes, standing) << "buffers and the operators' memory, too";
  // The model is small: 8,192 tokens of one nano-batch take less than a GiB more.
  EXPECT_LT(free_bytes, standing + kGib);
  // Ranks that share it have half each, and what else stands twice.
  const Config threads = on_devices({}, "threads");
  EXPECT_NEAR(cap_of(threads, {{80 * kGib, 132}}), cap - usable / 2, kDeviceCapUnit);
}

TEST(DeviceCap, is_the_smallest_of_the_ranks_and_never_none) {
  const Config config = on_devices({});
  const int64_t small = cap_of(config, {{40 * kGib, 132}});
  EXPECT_EQ(cap_of(config, {{80 * kGib, 132}, {40 * kGib, 132}}), small);
  EXPECT_LT(cap_of(config, {{40 * kGib, 132}, {80 * kGib, 132}}), 40 * kGib);
  EXPECT_EQ(cap_of(config, {{kGib / 2, 132}}), kDeviceCapUnit);
}

TEST(DeviceCap, leaves_room_for_the_operators_of_a_deterministic_backward) {
  const int64_t with = cap_of(on_devices({}), {{80 * kGib, 10'000}});
  const int64_t without = cap_of(on_devices({"train.deterministic=false"}), {{80 * kGib, 10'000}});
  EXPECT_LT(with, without - kGib);
}

TEST(DeviceCap, is_taken_only_where_it_decides_something) {
  const std::vector<DeviceFacts> devices = {{80 * kGib, 132}};
  EXPECT_GT(cap_of(on_devices({}), devices), 0);
  EXPECT_EQ(cap_of(on_devices({}), {}), 0);
  for (const char* override : {"plan.max_memory_gib=20", "exchange.keys=keep",
                               "exchange.keys=redispatch", "train.steps=0"})
    EXPECT_EQ(cap_of(on_devices({override}), devices), 0) << override;
  EXPECT_EQ(cap_of(load_config("", {"model.dtype=bfloat16"}), devices), 0) << "on the CPU";
}

TEST(DeviceCap, decides_whether_keys_are_kept_and_refuses_nothing) {
  Config config = on_devices({"batch.nano_batches=2"});
  config.device_cap_bytes = 60 * kGib;
  const BatchPlans kept = plan_nano_batches(config, batch_of(config), 2);
  EXPECT_FALSE(kept.redispatched);
  EXPECT_EQ(kept.plans[0].cluster.max_memory_bytes, 0);
  Config of_plan = config;  // `distca plan` and `simulate` ask no device
  of_plan.device_cap_bytes = 0;
  EXPECT_EQ(plans_hash(kept), plans_hash(plan_nano_batches(of_plan, batch_of(config), 2)));
  config.device_cap_bytes = kDeviceCapUnit;
  const BatchPlans redispatched = plan_nano_batches(config, batch_of(config), 2);
  EXPECT_TRUE(redispatched.redispatched);
  EXPECT_EQ(redispatched.plans[0].cluster.max_memory_bytes, 0);
  config.plan.max_memory_gib = 0x1p-4;
  EXPECT_THROW(plan_nano_batches(config, batch_of(config), 2), Error) << "what the user gives";
  config.plan.max_memory_gib = 0;
  // Homes that recompute keep Q, K, V of all their tokens only where they send them again.
  config.train.recompute = Recompute::kFull;
  EXPECT_FALSE(plan_nano_batches(config, batch_of(config), 2).redispatched);
}

TEST(DeviceCap, is_the_same_on_all_ranks) {
  const Config config = on_devices({});
  const auto agreed = [&](const std::array<int64_t, 3>& own) {
    std::array<int64_t, 3> caps{};
    run_ranks(3, {}, [&](Communicator& comm) {
      caps[comm.rank()] = with_device_cap(config, comm, own[comm.rank()]).device_cap_bytes;
    });
    return caps;
  };
  EXPECT_EQ(agreed({3 * kGib, 2 * kGib, 5 * kGib}), (std::array{2 * kGib, 2 * kGib, 2 * kGib}));
  EXPECT_EQ(agreed({3 * kGib, 0, 5 * kGib}), (std::array<int64_t, 3>{})) << "rank 1 knows none";
}

TEST(DeviceCap, is_recorded_and_a_run_that_goes_on_with_another_says_so) {
  Config config = on_devices({});
  const auto facts = [&](int64_t cap) {
    config.device_cap_bytes = cap;
    return run_facts(config, {.data = "3 documents"}, 2);
  };
  const RunFacts before = facts(2 * kGib);
  CheckpointIndex index;
  index.step = 1;
  index.config = before.config;
  index.machine = before.machine;
  index.data = before.data;
  EXPECT_EQ(check_resume(index, before).back(), "it goes on bit for bit");
  EXPECT_THAT(check_resume(index, facts(2 * kGib - kDeviceCapUnit)).back(),
              HasSubstr("not bit for bit: the cap of activations and kept keys by the devices' "
                        "memory was 2 GiB and is 1.9375 GiB"));
  EXPECT_THAT(facts(0).machine,
              Not(Contains(Key("cap of activations and kept keys by the devices' memory"))));
}

std::string refusal(const Config& config, const std::vector<DeviceFacts>& devices) {
  const BatchPlans plans = plan_nano_batches(config, batch_of(config), 2);
  try {
    check_device_memory(config, 2, {.count = 2}, devices, &plans);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(DeviceMemory, that_is_too_little_is_refused_for_the_ranks_of_one_device) {
  const Config alone = on_devices({"model.num_hidden_layers=64"});
  const auto of_one = static_cast<int64_t>(memory_needed(alone, 2, {}).total());
  EXPECT_EQ(refusal(alone, {}), "") << "not known";
  EXPECT_EQ(refusal(alone, {{2 * of_one, 132}}), "");
  EXPECT_THAT(refusal(alone, {{2 * of_one, 132}, {of_one / 2, 132}}),
              AllOf(HasSubstr("rank 1 would need "), HasSubstr(" GiB of memory (weights "),
                    HasSubstr(", its device has "), HasSubstr(" = true, or more workers")));
  const Config threads = on_devices({"model.num_hidden_layers=64"}, "threads");
  EXPECT_EQ(refusal(threads, {{3 * of_one, 132}}), "");
  EXPECT_THAT(refusal(threads, {{of_one * 3 / 2, 132}}),
              AllOf(HasSubstr("the 2 ranks that share a device would need "),
                    HasSubstr(", which has "), HasSubstr(" = true, or fewer ranks on a device")));
}

TEST(DeviceMemory, holds_no_copy_for_checkpoints) {
  EXPECT_EQ(
      standing_memory(on_devices({"checkpoint.every_steps=10"}), 2, {}).of(MemoryPart::kCheckpoint),
      0);
  EXPECT_GT(standing_memory(load_config("", {"checkpoint.every_steps=10"}), 2, {})
                .of(MemoryPart::kCheckpoint),
            0);
}

TEST(DeviceMemory, without_a_device_a_dry_run_says_what_it_does_not_know) {
  const Config config = on_devices({});
  const std::string nowhere = dry_run_text(config, 2, dry_run(config, 2, {.count = 2}));
  EXPECT_THAT(nowhere, AllOf(HasSubstr("There is no CUDA device here"),
                             HasSubstr("predicted for 132 multiprocessors")));
  const DryRun here = dry_run(config, 2, {.count = 2}, {}, {{80 * kGib, 132}});
  EXPECT_EQ(here.device_cap_bytes, cap_of(config, {{80 * kGib, 132}}));
  EXPECT_FALSE(here.plans.redispatched);
  EXPECT_TRUE(dry_run(config, 2, {.count = 2}, {}, {{3 * kGib, 132}}).plans.redispatched);
  EXPECT_THAT(dry_run_text(config, 2, here),
              AllOf(HasSubstr("which is 80.0 GiB of the first one"), HasSubstr("take at most")));
}

TEST(DeviceMemory, of_attentions_operators_is_in_the_peaks) {
  const auto peak = [](const std::string& deterministic) {
    const Config config = on_devices({"train.deterministic=" + deterministic});
    return dry_run(config, 1, {}, {}, {{80 * kGib, 10'000}}).peaks[0];
  };
  // Each head has so many of the 10,000 multiprocessors that sums of dQ are divided thousands of
  // times.
  EXPECT_GT(peak("true").of(MemoryPart::kPhase), peak("false").of(MemoryPart::kPhase) + kGib);
  EXPECT_THAT(peak("true").where, HasSubstr("backward layer"));
}

}  // namespace
}  // namespace distca
