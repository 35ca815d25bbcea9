// Bytes that an exchange copies beside bytes that had to travel, layer by layer:
//   build/release/bench/copies
// Core attention of a step is played by ranks as threads, for several plans, formats, servers, keys
// kept and redispatched; counts are exact, so that nothing is measured twice. Exit code 1 where a
// bar is missed (bench/copies_count.h), where layers or schedules differ, or where a step after the
// first allocates.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/copies_count.h"
#include "bench/program.h"
#include "distca/base/build_info.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
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
    return plan.scheduler + (plan.spread ? ", spread" : plan.split_kv ? ", key ranges" : "");
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

struct Counted {
  Travels layer{};                // of one layer, both nano-batches, all ranks
  int64_t buffer_bytes = 0;       // of the rank with most
  int64_t later_allocations = 0;  // after the first step, of all ranks
  std::vector<std::string> faults;
};

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
    of(op).messages += static_cast<int64_t>(program_.sends(op).messages.size());
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
    of(op) += {.sent = after.sent - before.sent,
               .received = after.received - before.received,
               .packed = after.packed - before.packed,
               .unpacked = after.unpacked - before.unpacked,
               .merged = after.copied - before.copied};
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
  std::vector<Travels> layers = std::vector<Travels>(kLayers);  // of the first step
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

/// The layers' counts over all ranks; one, where the layers are alike.
Counted sum_up(const PlannedCase& step, const std::vector<RankCount>& ranks) {
  Counted sum;
  std::vector<Travels> layers(kLayers);
  for (const RankCount& rank : ranks) {
    sum.buffer_bytes = std::max(sum.buffer_bytes, rank.buffer_bytes);
    sum.later_allocations += rank.later_allocations;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      for (size_t i = 0; i < layers[layer].size(); ++i) layers[layer][i] += rank.layers[layer][i];
    }
  }
  for (const Travels& layer : layers) {
    if (layer != layers[0]) sum.faults.push_back("layers differ");
  }
  sum.layer = layers[0];
  for (const Plan& plan : step.plans)
    add_needed(plan, step.what.types(), step.what.redispatched, &sum.layer);
  const std::vector<std::string> missed = faults(sum.layer);
  sum.faults.insert(sum.faults.end(), missed.begin(), missed.end());
  if (sum.later_allocations > 0) sum.faults.push_back("a later step allocates");
  return sum;
}

/// Under every schedule.
Counted count(const Case& what) {
  const PlannedCase step(what);
  std::vector<Counted> overlaps;
  for (const OverlapName& overlap : kOverlaps) {
    std::vector<RankCount> ranks(what.pool->capacity.size());
    run_ranks(static_cast<int>(ranks.size()), {.timeout_s = 600}, [&](Communicator& comm) {
      at::set_num_threads(1);
      ranks[comm.rank()] = count_rank(step, overlap.overlap, comm);
    });
    overlaps.push_back(sum_up(step, ranks));
    for (std::string& fault : overlaps.back().faults)
      fault = fmt::format("{}: {}", overlap.name, fault);
  }
  Counted result = overlaps.back();
  for (size_t i = 0; i + 1 < overlaps.size(); ++i) {
    const Counted& other = overlaps[i];
    result.faults.insert(result.faults.end(), other.faults.begin(), other.faults.end());
    if (other.layer != result.layer)
      result.faults.push_back(
          fmt::format("{} and {} differ", kOverlaps[i].name, kOverlaps[overlaps.size() - 1].name));
    result.buffer_bytes = std::max(result.buffer_bytes, other.buffer_bytes);
    result.later_allocations += other.later_allocations;
  }
  return result;
}

std::string share(int64_t bytes, int64_t of) {
  return of == 0 ? "-"
                 : fmt::format("{:.3f}", static_cast<double>(bytes) / static_cast<double>(of));
}

void add_rows(const Case& what, const Counted& counted, Table* table) {
  for (int i = 0; i < kNumTravels; ++i) {
    const TravelBytes& bytes = counted.layer[i];
    if (bytes == TravelBytes{} && i > 0) continue;
    const bool first = i == 0;
    table->add_row({first ? what.plan_name() : "", first ? what.pool->name : "",
                    first ? std::string(short_name(what.dtype)) : "",
                    first ? (what.redispatched ? "redispatched" : "kept") : "",
                    travel_name(static_cast<Travel>(i)), with_thousands(bytes.needed),
                    with_thousands(bytes.sent), with_thousands(bytes.packed),
                    share(bytes.packed, bytes.sent), with_thousands(bytes.unpacked),
                    share(bytes.unpacked, bytes.received), with_thousands(bytes.merged),
                    with_thousands(bytes.messages),
                    first ? with_thousands(counted.buffer_bytes) : "",
                    first ? with_thousands(counted.later_allocations) : ""});
  }
}

Json to_json(const Case& what, const Counted& counted) {
  Json travels = Json::object();
  for (int i = 0; i < kNumTravels; ++i) {
    const TravelBytes& bytes = counted.layer[i];
    travels[travel_name(static_cast<Travel>(i))] = {
        {"needed", bytes.needed},    {"sent", bytes.sent},         {"received", bytes.received},
        {"packed", bytes.packed},    {"unpacked", bytes.unpacked}, {"merged", bytes.merged},
        {"messages", bytes.messages}};
  }
  return {{"plan", what.plan_name()},
          {"servers", what.pool->name},
          {"dtype", short_name(what.dtype)},
          {"keys", what.redispatched ? "redispatched" : "kept"},
          {"wide_gradients", what.wide_gradients},
          {"layer", travels},
          {"buffer_bytes", counted.buffer_bytes},
          {"later_allocations", counted.later_allocations},
          {"faults", counted.faults}};
}

int measure(bool json) {
  const std::vector<Case> cases = all_cases();
  Table table({"plan", "servers", "type", "keys", "messages of a layer", "had to travel", "sent",
               "packed", "/ sent", "unpacked", "/ received", "merged", "messages", "buffers",
               "later allocations"});
  Json rows = Json::array();
  std::vector<std::string> missed;
  for (const Case& what : cases) {
    const Counted counted = count(what);
    add_rows(what, counted, &table);
    rows.push_back(to_json(what, counted));
    for (const std::string& fault : counted.faults) {
      missed.push_back(fmt::format("{}, {}, {}, {}: {}", what.plan_name(), what.pool->name,
                                   short_name(what.dtype),
                                   what.redispatched ? "redispatched" : "kept", fault));
    }
  }
  if (json) {
    fmt::print("{}\n", Json{{"commit", build_info::kCommit}, {"cases", rows}}.dump());
    return missed.empty() ? 0 : 1;
  }
  fmt::print(
      "distca {}\n{} workers, {} nano-batches of {} tokens, {} heads on {} key heads of {}; bytes "
      "of "
      "one layer, all ranks;\nbuffers: bytes of the rank with most; allocations after the first of "
      "{} steps, under {} ways to overlap\n\n{}\n",
      build_info::kCommit, kWorkers, kNanoBatches.size(), with_thousands(kTokens), 4, 2, 16, kSteps,
      kOverlaps.size(), table.to_string());
  for (const std::string& line : missed) fmt::print("missed: {}\n", line);
  fmt::print(
      "{} of {} cases reach every bar: nothing sent that need not travel, at most one copy of "
      "each byte on each side, no allocation after the first step\n",
      std::ranges::count_if(rows, [](const Json& row) { return row["faults"].empty(); }),
      cases.size());
  return missed.empty() ? 0 : 1;
}

int run(int argc, char** argv) {
  bool json = false;
  CLI::App app{"Bytes that an exchange copies beside bytes that had to travel", "copies"};
  app.add_flag("--json", json);
  if (!parse_options(app, argc, argv)) return 0;
  return measure(json);
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/copies",
                                      [&] { return distca::bench::run(argc, argv); });
}
