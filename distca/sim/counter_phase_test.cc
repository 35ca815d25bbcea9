// How long the ranks of a server wait for what travels between them, in turn and in counter-phase.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/program/program_builder.h"
#include "distca/program/validate/validate.h"
#include "distca/sim/player.h"

namespace distca::testing {
namespace {

using ::testing::IsEmpty;

constexpr int kTensor = 8;

/// Servers of an 8B model whose 8 ranks have 1 / 8 of its heads and features, and two nano-batches
/// of a sampled workload, of which documents may be cut into `pieces`.
class Llama8b {
 public:
  explicit Llama8b(int pieces) {
    const Workload workload =
        read_workload("distca/plan/testdata/workloads/pretrain_8x128k_0.json");
    std::vector<int64_t> lengths;
    for (const Document& document : workload.nano_batch.documents)
      lengths.insert(lengths.end(), static_cast<size_t>(pieces), document.length / pieces);
    plan_ = make_plan({.nano_batch = NanoBatch::from_lengths(lengths),
                       .cluster = Cluster::in_place(workload.ranks),
                       .shape = kShape});
  }

  std::vector<Program> programs(Program (*build)(const ProgramRequest&)) const {
    const PlanIndex index(plan_);
    std::vector<Program> all;
    for (int server = 0; server < plan_.cluster.num_servers(); ++server) {
      const NanoPart part{std::make_shared<const AttentionExchange>(make_attention_exchange(
          index.exchange(server), kShape, exchange_types(ScalarType::kBFloat16, false)))};
      for (int rank = 0; rank < kTensor; ++rank) {
        ProgramRequest request{
            .server = server, .tensor = {kTensor, rank}, .nano_batches = {part, part}};
        request.model = {.num_layers = 6,
                         .hidden_size = 4096,
                         .intermediate_size = 14336 / kTensor,
                         .attention = kShape,
                         .vocab_size = 128256 / kTensor};
        all.push_back(build(request));
      }
    }
    return all;
  }

 private:
  static constexpr AttentionShape kShape{
      .num_heads = 4, .num_kv_heads = 1, .head_dim_qk = 128, .head_dim_v = 128};
  Plan plan_;
};

/// Seconds of a step at stated rates: matrix products 495 TFLOP/s, attention 310; between the ranks
/// of a server 350 GB/s and 15 us or, if not `in_servers`, no time; between servers 45 GB/s and 20
/// us.
double seconds_of(const std::vector<Program>& programs, bool in_order, bool in_servers) {
  const RatePrices prices([](int, const Op& op) {
    return op.flops / (op.kind == OpKind::kCoreAttention ? 310e12 : 495e12);
  });
  Wire wire{.between = {.latency_ps = 20'000'000, .bytes_per_s = 45'000'000'000},
            .ranks_per_node = kTensor,
            .in_order = in_order};
  if (in_servers) wire.inside = {.latency_ps = 15'000'000, .bytes_per_s = 350'000'000'000};
  return 1e-12 * static_cast<double>(timed_step(programs, prices, wire).length_ps);
}

TEST(CounterPhase, leaves_little_of_what_travels_in_servers_to_be_waited_for) {
  for (const int pieces : {1, 4}) {
    const Llama8b model(pieces);
    const std::vector<Program> in_turn = model.programs(build_in_turn),
                               counter_phase = model.programs(build_counter_phase);
    EXPECT_THAT(validate(counter_phase), IsEmpty());
    for (const bool in_order : {false, true}) {
      const double alone = seconds_of(in_turn, in_order, false),
                   blocking = seconds_of(in_turn, in_order, true) - alone,
                   ends = seconds_of(counter_phase, in_order, true),
                   exposed = ends - seconds_of(counter_phase, in_order, false);
      fmt::print(
          "documents in {}, {}: blocking {:.4f} of {:.3f} s, counter-phase {:.4f} of {:.3f}\n",
          pieces, in_order ? "in order" : "together", blocking, alone + blocking, exposed, ends);
      EXPECT_GT(blocking, 0.05 * alone);
      EXPECT_LE(exposed, blocking / 10);
      EXPECT_LE(ends, 1.01 * alone) << "nor does anything else take longer";
    }
  }
}

}  // namespace
}  // namespace distca::testing
