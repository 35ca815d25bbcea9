// Bytes that an exchange copies beside bytes that had to travel, layer by layer:
//   bench/report.py build/release/bench/copies
// Core attention of a step is played by ranks as threads, for several plans, formats, servers, keys
// kept and redispatched; counts are exact, so that nothing is measured twice.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/copies_count.h"
#include "bench/main.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/thread_group.h"
#include "distca/plan/exchange.h"
#include "distca/runtime/core_attention_testing.h"
#include "distca/train/config.h"
#include "distca/train/plan_request.h"

namespace distca::bench {
namespace {

constexpr int kWorkers = 4;
constexpr int kSteps = 3;
constexpr int64_t kLayers = 3;

/// Two of kTokens each.
constexpr int64_t kTokens = 2048;
const std::vector<std::vector<int64_t>> kNanoBatches = {{1250, 425, 225, 100, 33, 15},
                                                        {750, 650, 300, 175, 103, 38, 25, 7}};

struct Pool {
  const char* name;
  std::vector<int64_t> capacity;  // [servers]
};
const Pool kInPlace{"in place", {1, 1, 1, 1}};
const Pool kDedicated{"1 dedicated", {0, 0, 0, 0, 1}};
const Pool kMixed{"in place + 2", {2, 2, 2, 2, 3, 1}};

/// What is played.
struct Case {
  PlanOptions plan;
  const Pool* pool = &kInPlace;
  ScalarType dtype = ScalarType::kFloat32;
  bool redispatched = false;
  bool wide_gradients = false;  // dQ, dK, dV travel in the accumulator's type

  std::string plan_name() const {
    return plan.scheduler + (plan.spread ? ", spread" : plan.split_kv ? ", split-KV" : "");
  }
  ExchangeTypes types() const {
    return {.compute = dtype,
            .accumulator = ScalarType::kFloat32,
            .gradient = wide_gradients ? ScalarType::kFloat32 : dtype};
  }
};

std::vector<Case> all_cases() {
  std::vector<PlanOptions> plans(6);
  plans[1].split_kv = true;
  plans[2].split_kv = plans[2].spread = true;
  plans[3].scheduler = "greedy";
  plans[4].scheduler = "per-document-cp";
  plans[5].scheduler = "wlb";
  std::vector<Case> cases;
  for (const PlanOptions& plan : plans) {
    cases.push_back({.plan = plan});
    cases.push_back({.plan = plan, .dtype = ScalarType::kBFloat16});
    cases.push_back({.plan = plan,
                     .pool = &kMixed,
                     .dtype = ScalarType::kBFloat16,
                     .redispatched = true,
                     .wide_gradients = true});
    cases.push_back({.plan = plan, .pool = &kDedicated, .redispatched = true});
  }
  return cases;
}

/// Counts what each operation adds.
class CountingPlayer final : public OpPlayer {
 public:
  CountingPlayer(const Program& program, testing::AttentionPlayer& player,
                 std::vector<Travels>* layers)
      : program_(program), player_(player), layers_(*layers) {}

  void play(const Op& op) override {
    if (op.kind != OpKind::kCoreAttention) return player_.play(op);
    count(op, [&] { player_.play(op); });
  }
  void pack(const Op& op) override {
    count(op, [&] { player_.pack(op); });
    of(op)[kMessages] += static_cast<int64_t>(program_.sends(op).messages.size());
  }
  void issue(const Op& op) override {
    count(op, [&] { player_.issue(op); });
  }
  void wait(const Op& op) override {
    count(op, [&] { player_.wait(op); });
  }
  void land(const Op& op) override {
    count(op, [&] { player_.land(op); });
  }
  void wait_sent(const Op& op) override {
    count(op, [&] { player_.wait_sent(op); });
  }

 private:
  TravelBytes& of(const Op& op) { return layers_[op.layer][static_cast<size_t>(travel_of(op))]; }
  template <typename Body>
  void count(const Op& op, const Body& body) {
    const ExchangeBytes before = player_.bytes();
    body();
    const ExchangeBytes after = player_.bytes();
    TravelBytes& counts = of(op);
    counts[kSent] += after.sent - before.sent;
    counts[kReceived] += after.received - before.received;
    counts[kPacked] += after.packed - before.packed;
    counts[kUnpacked] += after.unpacked - before.unpacked;
    counts[kMerged] += after.copied - before.copied;
  }

  const Program& program_;
  testing::AttentionPlayer& player_;
  std::vector<Travels>& layers_;
};

LlamaConfig model_of(ScalarType dtype) {
  LlamaConfig model;
  model.vocab_size = 31;
  model.hidden_size = 64;
  model.intermediate_size = 64;
  model.num_hidden_layers = kLayers;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 16;
  model.dtype = dtype;
  return model;
}

/// The plans of a case and what every rank does in them.
struct PlannedCase {
  const Case& what;
  LlamaConfig model;
  std::vector<Plan> plans;
  std::vector<PlanIndex> indices;

  explicit PlannedCase(const Case& of) : what(of), model(model_of(of.dtype)) {
    for (const std::vector<int64_t>& lengths : kNanoBatches) {
      PlanRequest request{.nano_batch = NanoBatch::from_lengths(lengths),
                          .cluster = Cluster::in_place(kWorkers),
                          .shape = model.shape().attention,
                          .options = what.plan};
      request.cluster.capacity = what.pool->capacity;
      plans.push_back(make_plan(request));
    }
    for (const Plan& plan : plans) indices.emplace_back(plan);
  }

  std::vector<RankExchange> exchanges(int rank) const {
    std::vector<RankExchange> result;
    for (const PlanIndex& index : indices) result.push_back(index.exchange(rank));
    return result;
  }

  testing::AttentionLayers layers(const std::vector<RankExchange>& exchanges) const {
    testing::AttentionLayers nanos;
    for (const RankExchange& exchange : exchanges) {
      const auto zeros = [&](int64_t heads) {
        return at::zeros({exchange.local_tokens, heads, model.head_dim}, aten_type(model.dtype));
      };
      const at::Tensor of_queries = zeros(model.num_attention_heads);
      const at::Tensor of_keys = zeros(model.num_key_value_heads);
      nanos.emplace_back(
          kLayers,
          testing::AttentionLayer{.q = of_queries, .k = of_keys, .v = of_keys, .d_o = of_queries});
    }
    return nanos;
  }
};

/// One rank's counts.
struct RankCount {
  std::vector<Travels> layers = std::vector<Travels>(kLayers);  // of the last step
  int64_t buffer_bytes = 0;
  int64_t later_allocations = 0;
};

RankCount count_rank(const PlannedCase& step, Overlap overlap, Communicator& comm) {
  RankCount counted;
  AttentionKernel kernel(kernel_request(step.model, KernelChoice::kAuto, 1, -1));
  ExchangeBuffers buffers(-1);
  int64_t first = 0;
  const int rank = comm.rank();
  const std::vector<RankExchange> exchanges = step.exchanges(rank);
  const testing::AttentionStyle style{.overlap = overlap,
                                      .redispatched = step.what.redispatched,
                                      .wide_gradients = step.what.wide_gradients};
  const Program program = testing::attention_program(
      exchanges, style, kernel.shape(), kernel.type(), static_cast<int>(kLayers), rank < kWorkers);
  for (int i = 0; i < kSteps; ++i) {
    buffers.prepare(program);
    testing::AttentionLayers tensors = step.layers(exchanges);
    testing::AttentionPlayer player(program, kernel, comm, buffers, tensors);
    std::vector<Travels> layers(kLayers);
    CountingPlayer counting(program, player, &layers);
    OpTimes times;
    play(program, counting, &times);
    if (i == 0) first = buffers.allocations();
    counted.layers = layers;
  }
  counted.buffer_bytes = buffers.allocated_bytes();
  counted.later_allocations = buffers.allocations() - first;
  return counted;
}

Json to_json(const Travels& travels) {
  Json json = Json::object();
  for (int i = 0; i < kNumTravels; ++i) {
    Json& counts = json[travel_name(static_cast<Travel>(i))];
    for (size_t count = 0; count < kNumCounts; ++count)
      counts[kCountNames[count]] = travels[i][count];
  }
  return json;
}

/// A line: each layer's counts over all ranks; buffers: bytes of the rank with most.
void write_counts(const PlannedCase& step, std::string_view overlap,
                  const std::vector<RankCount>& ranks) {
  const Case& what = step.what;
  int64_t buffer_bytes = 0, later_allocations = 0;
  for (const RankCount& rank : ranks) {
    buffer_bytes = std::max(buffer_bytes, rank.buffer_bytes);
    later_allocations += rank.later_allocations;
  }
  Json layers = Json::array();
  for (size_t layer = 0; layer < kLayers; ++layer) {
    Travels sum{};
    for (const RankCount& rank : ranks) {
      for (size_t i = 0; i < sum.size(); ++i) {
        std::ranges::transform(sum[i], rank.layers[layer][i], sum[i].begin(), std::plus{});
      }
    }
    for (const Plan& plan : step.plans) add_needed(plan, what.types(), what.redispatched, &sum);
    layers.push_back(to_json(sum));
  }
  write_line("case", {{"plan", what.plan_name()},
                      {"servers", what.pool->name},
                      {"dtype", short_name(what.dtype)},
                      {"keys", what.redispatched ? "redispatched" : "kept"},
                      {"wide_gradients", what.wide_gradients},
                      {"overlap", overlap},
                      {"layers", layers},
                      {"buffer_bytes", buffer_bytes},
                      {"later_allocations", later_allocations}});
}

/// Under every overlap mode.
void count(const Case& what) {
  const PlannedCase step(what);
  for (const OverlapName& overlap : kOverlaps) {
    std::vector<RankCount> ranks(what.pool->capacity.size());
    run_ranks(static_cast<int>(ranks.size()), {.timeout_s = 600}, [&](Communicator& comm) {
      at::set_num_threads(1);
      ranks[comm.rank()] = count_rank(step, overlap.overlap, comm);
    });
    write_counts(step, overlap.name, ranks);
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Bytes that an exchange copies beside bytes that had to travel", "copies"};
  if (!parse_options(app, argc, argv)) return 0;
  const LlamaConfig model = model_of(ScalarType::kFloat32);
  write_header("copies", {{"workers", kWorkers},
                          {"nano_batches", kNanoBatches.size()},
                          {"tokens", kTokens},
                          {"model", model.to_hugging_face(0)},
                          {"steps", kSteps}});
  for (const Case& what : all_cases()) count(what);
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/copies",
                                      [&] { return distca::bench::run(argc, argv); });
}
