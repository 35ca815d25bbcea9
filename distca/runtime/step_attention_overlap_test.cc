// Core attention under every schedule, with kept and redispatched keys, on recorded Q, K, V and dO:
// the same plans give the same results.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "distca/comm/aten_types.h"
#include "distca/comm/test_groups.h"
#include "distca/comm/thread_group.h"
#include "distca/program/program_builder.h"
#include "distca/program/program_testing.h"
#include "distca/runtime/step_attention_testing.h"

namespace distca {
namespace {

using testing::AttentionLayer;
using testing::AttentionLayers;
using testing::AttentionStyle;
using testing::same_bytes;
using testing::StepExchanges;

constexpr int kLayers = 2;
const kernels::Shape kShape{
    .num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8, .softmax_scale = 0.25};
/// The third has no partner under ping-pong.
const std::vector<std::vector<int64_t>> kLengths = {
    {700, 1, 130, 384}, {1100, 129}, {513, 300, 40}};

/// The tensors that a rank's phases would give, as a function of rank, nano-batch and layer.
AttentionLayers recorded(const StepExchanges& step, int rank, ScalarType type) {
  AttentionLayers layers(step.plans.size());
  for (size_t nano = 0; nano < layers.size(); ++nano) {
    const int64_t tokens = step.of_ranks[rank][nano].local_tokens;
    for (int layer = 0; layer < kLayers; ++layer) {
      at::Generator generator = at::detail::createCPUGenerator(
          (static_cast<uint64_t>(rank) * layers.size() + nano) * kLayers + layer);
      const auto random = [&](int64_t heads, int64_t dim) {
        return at::randn({tokens, heads, dim}, generator, at::kDouble).to(aten_type(type));
      };
      layers[nano].push_back({.q = random(kShape.num_heads, kShape.head_dim_qk),
                              .k = random(kShape.num_kv_heads, kShape.head_dim_qk),
                              .v = random(kShape.num_kv_heads, kShape.head_dim_v),
                              .d_o = random(kShape.num_heads, kShape.head_dim_v)});
    }
  }
  return layers;
}

struct Outcome {
  std::vector<AttentionLayers> of_ranks;
  std::vector<ExchangeBytes> bytes;                      // [rank]
  std::vector<std::pair<int64_t, int64_t>> allocations;  // [rank] after the first step, the last
};

Outcome run(const StepExchanges& step, const AttentionStyle& style, ScalarType type, int steps = 1,
            Backend backend = Backend::kThreads) {
  Outcome outcome;
  const int ranks = step.num_ranks();
  outcome.of_ranks.resize(ranks);
  outcome.bytes.resize(ranks);
  outcome.allocations.resize(ranks);
  run_on(backend, ranks, {}, [&](Communicator& comm) {
    at::set_num_threads(1);
    const int rank = comm.rank();
    AttentionKernel kernel({.choice = KernelChoice::kCpu, .shape = kShape, .type = type});
    ExchangeBuffers buffers(/*cuda_device=*/-1);
    for (int i = 0; i < steps; ++i) {
      outcome.of_ranks[rank] = recorded(step, rank, type);
      outcome.bytes[rank] =
          testing::play_attention(step.of_ranks[rank], style, kernel, comm, buffers,
                                  outcome.of_ranks[rank], rank < step.cluster.num_workers);
      if (i == 0) outcome.allocations[rank].first = buffers.allocations();
      outcome.allocations[rank].second = buffers.allocations();
    }
  });
  return outcome;
}

enum class Equal { kOutputs, kEverything };

/// Nano-batches from 0 to `nano_batches` - 1.
void expect_same_bits(const StepExchanges& step, const Outcome& got, const Outcome& want,
                      Equal equal, size_t nano_batches = kLengths.size()) {
  for (int rank = 0; rank < step.cluster.num_workers; ++rank) {
    for (size_t nano = 0; nano < nano_batches; ++nano) {
      for (int i = 0; i < kLayers; ++i) {
        SCOPED_TRACE(fmt::format("rank {}, nano-batch {}, layer {}", rank, nano, i));
        const AttentionLayer& a = got.of_ranks[rank][nano][i];
        const AttentionLayer& b = want.of_ranks[rank][nano][i];
        EXPECT_TRUE(same_bytes(a.o, b.o));
        if (equal == Equal::kOutputs) continue;
        EXPECT_TRUE(same_bytes(a.dq, b.dq));
        EXPECT_TRUE(same_bytes(a.dk, b.dk));
        EXPECT_TRUE(same_bytes(a.dv, b.dv));
      }
    }
  }
}

void expect_gradients_within_bounds(const StepExchanges& step, const Outcome& got,
                                    const Outcome& want, ScalarType type) {
  const double bound = testing::bounds_of(type, /*longest=*/1100).backward;
  for (int rank = 0; rank < step.cluster.num_workers; ++rank) {
    for (size_t nano = 0; nano < kLengths.size(); ++nano) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const AttentionLayer& a = got.of_ranks[rank][nano][layer];
        const AttentionLayer& b = want.of_ranks[rank][nano][layer];
        if (a.q.size(0) == 0) continue;
        EXPECT_LE(testing::difference({a.dq}, {b.dq}), bound);
        EXPECT_LE(testing::difference({a.dk}, {b.dk}), bound);
        EXPECT_LE(testing::difference({a.dv}, {b.dv}), bound);
      }
    }
  }
}

/// Steps that workers serve in place, alone or with dedicated servers, or that dedicated servers
/// serve alone. No plan cuts keys.
std::vector<StepExchanges> steps(int ranks) {
  std::vector<StepExchanges> all;
  const auto add = [&](const char* scheduler, int dedicated, bool in_place) {
    const PlanOptions options{.scheduler = scheduler, .tolerance_ppm = 0};
    all.push_back(testing::plan_step(
        kLengths, testing::pool(ranks - dedicated, dedicated, in_place), options));
  };
  add("greedy", 0, true);
  add("balanced", 0, true);
  if (ranks > 1) add("greedy", 1, true);
  if (ranks > 2) add("greedy", 2, false);
  return all;
}

class SchedulesTest : public ::testing::TestWithParam<std::tuple<ScalarType, int>> {
 protected:
  const ScalarType type_ = std::get<0>(GetParam());
  const std::vector<StepExchanges> steps_ = steps(std::get<1>(GetParam()));
};

INSTANTIATE_TEST_SUITE_P(formats, SchedulesTest,
                         ::testing::Combine(::testing::Values(ScalarType::kFloat32,
                                                              ScalarType::kBFloat16),
                                            ::testing::Values(1, 2, 3, 4, 7)));

TEST_P(SchedulesTest, give_the_same_bits_of_o_and_gradients_up_to_their_order_of_summation) {
  for (const StepExchanges& step : steps_) {
    const Outcome blocking = run(step, {.overlap = Overlap::kNone}, type_);
    const Outcome overlap = run(step, {.overlap = Overlap::kWithin}, type_);
    const Outcome ping_pong = run(step, {.overlap = Overlap::kPingPong}, type_);
    expect_same_bits(step, overlap, blocking, Equal::kOutputs);
    expect_same_bits(step, ping_pong, blocking, Equal::kOutputs);
    // With a partner tasks are computed in one go, in the same order as blocking does.
    expect_same_bits(step, ping_pong, blocking, Equal::kEverything, /*nano_batches=*/2);
    expect_gradients_within_bounds(step, overlap, blocking, type_);
  }
}

TEST_P(SchedulesTest, in_parts_give_the_same_bits_of_o_and_of_gradients_in_every_run) {
  for (const StepExchanges& step : steps_) {
    const Outcome blocking = run(step, {.overlap = Overlap::kNone}, type_);
    const Outcome parts = run(step, {.build = build_counter_phase}, type_);
    expect_same_bits(step, parts, blocking, Equal::kOutputs);
    expect_gradients_within_bounds(step, parts, blocking, type_);
    expect_same_bits(step, run(step, {.redispatched = true, .build = build_counter_phase}, type_),
                     parts, Equal::kEverything);
  }
}

TEST(CoreAttentionOverlaps, parts_of_tasks_with_part_of_the_keys_give_the_same_bits_of_o) {
  const StepExchanges step = testing::plan_step(kLengths, testing::pool(3, 1, /*in_place=*/true),
                                                {.tolerance_ppm = 0, .split_kv = true});
  size_t partial = 0;
  for (const auto& exchanges : step.of_ranks) {
    for (const RankExchange& exchange : exchanges)
      partial += std::ranges::count_if(exchange.tasks, &ServerTask::partial);
  }
  EXPECT_GT(partial, 3U);
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    const Outcome blocking = run(step, {.overlap = Overlap::kNone}, type);
    const Outcome parts = run(step, {.build = build_counter_phase}, type);
    expect_same_bits(step, parts, blocking, Equal::kOutputs);
    expect_gradients_within_bounds(step, parts, blocking, type);
  }
}

TEST_P(SchedulesTest, give_the_same_bits_whether_keys_are_kept_or_redispatched) {
  for (const StepExchanges& step : steps_) {
    for (const auto& [name, summary, overlap] : kOverlaps) {
      SCOPED_TRACE(name);
      const Outcome kept = run(step, {.overlap = overlap}, type_);
      const Outcome redispatched = run(step, {.overlap = overlap, .redispatched = true}, type_);
      expect_same_bits(step, redispatched, kept, Equal::kEverything);
      for (int rank = 0; rank < step.num_ranks(); ++rank) {
        EXPECT_GE(redispatched.bytes[rank].sent, kept.bytes[rank].sent);
      }
    }
  }
}

/// Bytes that travel twice where keys are redispatched: a rank's Q, K, V.
int64_t qkv_bytes(const StepExchanges& step, int rank, ScalarType type) {
  int64_t bytes = 0;
  for (const RankExchange& exchange : step.of_ranks[rank]) {
    for (const PeerTransfer& transfer : exchange.sends) {
      bytes += element_bytes(type) * (transfer.q_tokens * kShape.num_heads * kShape.head_dim_qk +
                                      transfer.kv_tokens * kShape.num_kv_heads *
                                          (kShape.head_dim_qk + kShape.head_dim_v));
    }
  }
  return kLayers * bytes;
}

TEST(CoreAttentionOverlaps, a_travelling_byte_is_copied_at_most_once_on_each_side) {
  int64_t travelled = 0;
  for (const StepExchanges& step : steps(4)) {
    for (const bool redispatched : {false, true}) {
      for (const bool wide : {false, true}) {
        const Outcome kept = run(step, {.overlap = Overlap::kPingPong}, ScalarType::kBFloat16);
        const Outcome outcome = run(
            step,
            {.overlap = Overlap::kPingPong, .redispatched = redispatched, .wide_gradients = wide},
            ScalarType::kBFloat16);
        for (int rank = 0; rank < step.num_ranks(); ++rank) {
          const ExchangeBytes& bytes = outcome.bytes[rank];
          EXPECT_LE(bytes.packed, bytes.sent);
          EXPECT_LE(bytes.unpacked, bytes.received);
          EXPECT_EQ(bytes.copied, 0) << "nothing is merged, and this is no GPU";
          travelled += bytes.sent;
          if (redispatched && !wide) {
            EXPECT_EQ(bytes.sent - kept.bytes[rank].sent,
                      qkv_bytes(step, rank, ScalarType::kBFloat16));
          }
        }
      }
    }
  }
  EXPECT_GT(travelled, 0);
}

TEST(CoreAttentionOverlaps, what_is_sent_is_what_the_plan_counts) {
  for (const bool split_kv : {false, true}) {
    const StepExchanges step = testing::plan_step(kLengths, testing::pool(3, 1, /*in_place=*/true),
                                                  {.tolerance_ppm = 0, .split_kv = split_kv});
    int64_t counted = 0;
    for (const std::unique_ptr<Plan>& plan : step.plans) {
      ASSERT_EQ(plan->shape.type, ScalarType::kBFloat16);
      for (const ServerLoad& load : plan->load) {
        // A row of O travels with its LSE, which the plan's account leaves out.
        const int64_t o_rows = load.o_send_bytes / (kShape.num_heads * kShape.head_dim_v * 2);
        counted += load.send_bytes + load.o_send_bytes + o_rows * kShape.num_heads * 4;
      }
    }
    ASSERT_GT(counted, 0);
    for (const auto& [name, summary, overlap] : kOverlaps) {
      SCOPED_TRACE(name);
      int64_t sent = 0, received = 0;
      for (const ExchangeBytes& bytes :
           run(step, {.overlap = overlap, .backward = false}, ScalarType::kBFloat16).bytes) {
        sent += bytes.sent;
        received += bytes.received;
      }
      EXPECT_EQ(sent, kLayers * counted);
      EXPECT_EQ(received, sent);
    }
  }
}

TEST(CoreAttentionOverlaps, buffers_of_the_first_step_serve_the_second_with_the_same_bits) {
  for (const StepExchanges& step : steps(3)) {
    for (const bool redispatched : {false, true}) {
      for (const auto& [name, summary, overlap] : kOverlaps) {
        const AttentionStyle style{.overlap = overlap, .redispatched = redispatched};
        const Outcome once = run(step, style, ScalarType::kFloat32);
        const Outcome twice = run(step, style, ScalarType::kFloat32, /*steps=*/2);
        expect_same_bits(step, twice, once, Equal::kEverything);
        for (const auto& [first, last] : twice.allocations) EXPECT_EQ(last, first);
      }
    }
  }
}

TEST(CoreAttentionOverlaps, give_the_same_bits_over_gloo_as_among_threads) {
  const PlanOptions options{.scheduler = "greedy", .tolerance_ppm = 0};
  const StepExchanges step =
      testing::plan_step(kLengths, testing::pool(2, /*dedicated=*/1, /*in_place=*/true), options);
  for (const auto& [name, summary, overlap] : kOverlaps) {
    SCOPED_TRACE(name);
    const AttentionStyle style{.overlap = overlap, .redispatched = true};
    const Outcome threads = run(step, style, ScalarType::kBFloat16, /*steps=*/2);
    const Outcome gloo = run(step, style, ScalarType::kBFloat16, /*steps=*/2, Backend::kGloo);
    expect_same_bits(step, gloo, threads, Equal::kEverything);
    for (int rank = 0; rank < step.num_ranks(); ++rank) {
      EXPECT_GT(gloo.bytes[rank].sent, 0);
      EXPECT_EQ(gloo.bytes[rank].sent, threads.bytes[rank].sent);
    }
  }
}

TEST(CoreAttentionOverlaps, a_rank_that_fails_while_messages_travel_ends_the_others) {
  class Failing final : public OpPlayer {
   public:
    explicit Failing(OpPlayer& inner) : inner_(inner) {}
    void play(const Op& op) override {
      if (op.kind == OpKind::kCoreAttention && op.layer == 1) throw std::out_of_range("mine");
      inner_.play(op);
    }
    void pack(const Op& op) override { inner_.pack(op); }
    void issue(const Op& op) override { inner_.issue(op); }
    void wait(const Op& op) override { inner_.wait(op); }
    void land(const Op& op) override { inner_.land(op); }
    void wait_sent(const Op& op) override { inner_.wait_sent(op); }

   private:
    OpPlayer& inner_;
  };
  const StepExchanges step =
      testing::plan_step(kLengths, Cluster::in_place(3), {.tolerance_ppm = 0});
  const auto play_all = [&](Communicator& comm) {
    at::set_num_threads(1);
    const int rank = comm.rank();
    const AttentionStyle style{.overlap = Overlap::kPingPong};
    AttentionKernel kernel({.choice = KernelChoice::kCpu, .shape = kShape});
    AttentionLayers layers = recorded(step, rank, ScalarType::kFloat32);
    const Program program = testing::attention_program(step.of_ranks[rank], style, kShape,
                                                       ScalarType::kFloat32, kLayers, true);
    ExchangeBuffers buffers(/*cuda_device=*/-1);
    buffers.prepare(program);
    testing::AttentionPlayer player(program, kernel, comm, buffers, layers);
    Failing failing(player);
    OpTimes times;
    play(program, rank == 1 ? static_cast<OpPlayer&>(failing) : player, &times);
  };
  EXPECT_THROW(run_ranks(3, {}, play_all), std::out_of_range);
}

}  // namespace
}  // namespace distca
