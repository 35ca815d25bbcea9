#pragma once
// Programs of all ranks for tests, from plans that the schedulers make.

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "distca/plan/attention_exchange.h"
#include "distca/plan/plan.h"
#include "distca/program/gradient_exchange.h"
#include "distca/program/overlap.h"
#include "distca/program/program.h"

namespace distca::testing {

/// Plans of a step and what each rank does in them.
struct StepExchanges {
  Cluster cluster;
  std::vector<std::unique_ptr<Plan>> plans;         // [nano-batch x windows + window]
  std::vector<std::vector<RankExchange>> of_ranks;  // [rank][plan]

  int num_ranks() const { return static_cast<int>(of_ranks.size()); }
};

/// One plan for each list of document lengths and each window (Mask::window_left), all
/// those of a list on the first one's layout.
inline StepExchanges plan_step(const std::vector<std::vector<int64_t>>& nano_batches,
                               const Cluster& cluster, const PlanOptions& options = {},
                               const std::vector<int64_t>& windows = {-1}) {
  StepExchanges step{.cluster = cluster};
  step.of_ranks.resize(cluster.num_servers());
  for (const std::vector<int64_t>& lengths : nano_batches) {
    PlanRequest request{
        .nano_batch = NanoBatch::from_lengths(lengths),
        .cluster = cluster,
        .shape = {.num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8},
        .options = options};
    const Layout layout = make_layout(request);
    for (const int64_t window_left : windows) {
      request.shape.mask.window_left = window_left;
      step.plans.push_back(std::make_unique<Plan>(make_plan(request, layout)));
      const PlanIndex index(*step.plans.back());
      for (int rank = 0; rank < cluster.num_servers(); ++rank) {
        step.of_ranks[rank].push_back(index.exchange(rank));
      }
    }
  }
  return step;
}

/// A cluster of workers and `dedicated` servers. The workers serve too if `in_place`.
inline Cluster pool(int workers, int dedicated, bool in_place) {
  Cluster cluster = Cluster::in_place(workers);
  if (!in_place) cluster.capacity.assign(workers, 0);
  cluster.capacity.insert(cluster.capacity.end(), dedicated, 1);
  return cluster;
}

/// How a program sums its gradients.
struct Gradients {
  int64_t bucket_elements = 0;  // size of a bucket. With 0, the program has none.
  bool distributed_optimizer = false;
  bool overlaps = true;
  int64_t head_blocks = 30;  // blocks of the head, which are complete first
  bool ties = false;  // the embedding of a pipeline's first stage is the last one's head, too
};

struct Style {
  Overlap overlap = Overlap::kPingPong;
  bool redispatched = false;
  ProgramRequest::Kind kind = ProgramRequest::Kind::kTrain;
  int num_layers = 2;
  ExchangeTypes types = {};
  Gradients gradients = {};
  std::vector<int> window_of_layer = {};  // [layer] index in the windows of plan_step()
  int tensor = 1;                         // ranks of each server; above 1 without gradients
};

inline std::vector<int> consecutive(int first, int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

/// The gradient exchange of a model with 10 blocks of 16 elements before the layers, 100 in each
/// layer and `head_blocks` behind. The first 10 belong to the head, too, as in a model with tied
/// embeddings.
inline std::shared_ptr<const GradientExchange> gradients_of(const Style& style, int rank,
                                                            int num_ranks) {
  GradientExchangeRequest request{.bucket_elements = style.gradients.bucket_elements,
                                  .rank = rank,
                                  .ranks = consecutive(0, num_ranks),
                                  .distributed_optimizer = style.gradients.distributed_optimizer,
                                  .overlaps = style.gradients.overlaps,
                                  .weight_offset = [](int64_t element) { return 2 * element; }};
  const auto add = [&](OpKind phase, int layer, int64_t elements) {
    request.phases.push_back({phase, layer, {request.elements, request.elements + 16 * elements}});
    request.elements += 16 * elements;
  };
  add(OpKind::kEmbed, -1, 10);
  for (int layer = 0; layer < style.num_layers; ++layer) {
    add(OpKind::kPreAttention, layer, 30);
    add(OpKind::kPostAttention, layer, 70);
  }
  add(OpKind::kLoss, -1, style.gradients.head_blocks);
  request.phases.push_back({OpKind::kLoss, -1, request.phases[0].elements});
  request.block = 16;
  return std::make_shared<const GradientExchange>(make_gradient_exchange(request));
}

/// The program of a rank of a server, which without tensor parallelism is the rank itself.
inline Program program_of(const StepExchanges& step, int rank, const Style& style, int index = 0) {
  ProgramRequest request{.overlap = style.overlap,
                         .kind = style.kind,
                         .holds_weights = rank < step.cluster.num_workers,
                         .server = rank,
                         .tensor = {style.tensor, index},
                         .window_of_layer = style.window_of_layer,
                         .least_share_pairs = 1 << 12};
  request.model = {.num_layers = style.num_layers, .hidden_size = 64, .intermediate_size = 96};
  request.model.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8};
  request.model.vocab_size = 100;
  if (style.gradients.bucket_elements > 0 && request.holds_weights &&
      style.kind == ProgramRequest::Kind::kTrain)
    request.gradients = gradients_of(style, rank, step.cluster.num_workers);
  for (const RankExchange& rows : step.of_ranks[rank]) {
    request.nano_batches.push_back(
        {.exchange = std::make_shared<const AttentionExchange>(
             make_attention_exchange(rows, request.model.attention, style.types)),
         .redispatched = style.redispatched});
  }
  return build_program(request);
}

inline std::vector<Program> programs_of(const StepExchanges& step, const Style& style) {
  std::vector<Program> programs;
  for (int rank = 0; rank < step.num_ranks(); ++rank) {
    for (int index = 0; index < style.tensor; ++index)
      programs.push_back(program_of(step, rank, style, index));
  }
  return programs;
}

/// One after another, by peer.
struct PeerBytes {
  int peer;
  int64_t bytes;
};
inline MessageList messages_of(const std::vector<PeerBytes>& peers) {
  MessageList list;
  for (const auto& [peer, bytes] : peers) list.add(peer, bytes);
  return list;
}

/// Appends a communication, with an exchange of its own that has these messages.
inline void add_exchange(Program& program, Op op, const std::vector<PeerBytes>& sends,
                         const std::vector<PeerBytes>& receives) {
  op.stream = Stream::kComm;
  op.exchange = static_cast<int32_t>(program.exchanges.size());
  op.layer_step = 0;
  const auto content = static_cast<size_t>(content_of(op));
  AttentionExchange exchange;
  const bool goes_home = op.kind == OpKind::kCombine;
  (goes_home ? exchange.with_homes : exchange.with_servers)[content] = messages_of(sends);
  (goes_home ? exchange.with_servers : exchange.with_homes)[content] = messages_of(receives);
  program.exchanges.push_back(std::make_shared<const AttentionExchange>(std::move(exchange)));
  program.ops.push_back(std::move(op));
}

/// A program's exchange, to be changed: other programs keep theirs.
inline AttentionExchange& own_exchange(Program& program, const Op& op) {
  auto own = std::make_shared<AttentionExchange>(*program.exchanges[op.exchange]);
  program.exchanges[op.exchange] = own;
  return *own;
}

/// "pre_attention 0a", of layer 0 and nano-batch a; "'" for backward; "core_attention(away) 1b'";
/// "p2p> a" to another stage, "p2p< a" from it.
inline std::string short_name(const Op& op) {
  std::string name = op_name(op.kind);
  if (op.bucket >= 0) return name + " " + std::to_string(op.bucket);
  if (op.tasks != TaskSet::kAll) name += std::string("(") + task_set_name(op.tasks) + ")";
  if (op.part >= 0) name += "(" + std::to_string(op.part) + ")";
  if (op.kind == OpKind::kP2p) name += op.is_receive ? "<" : ">";
  if (op.nano_batch < 0) return op.pass == Pass::kBackward && op.exchange >= 0 ? name + "'" : name;
  name += " ";
  if (op.layer >= 0) name += std::to_string(op.layer);
  name += static_cast<char>('a' + op.nano_batch);
  return op.pass == Pass::kBackward ? name + "'" : name;
}

inline std::string order_of(const Program& program) {
  std::string order;
  for (const Op& op : program.ops) order += short_name(op) + ", ";
  return order.substr(0, order.empty() ? 0 : order.size() - 2);
}

}  // namespace distca::testing
