#pragma once
// For tests: the programs of all ranks of a pipeline, from plans that the schedulers make.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"
#include "distca/program/overlap.h"
#include "distca/program/pipeline_order.h"
#include "distca/program/pipeline_parts.h"
#include "distca/program/program_testing.h"

namespace distca::testing {

using Order = PipelineSchedule;

struct PipelineStyle {
  std::vector<int64_t> layers = {1, 1};       // [stage] how many
  std::vector<std::vector<int64_t>> lengths;  // [nano-batch] of documents
  int replicas = 1, dedicated = 0;            // servers
  int tensor = 1;                             // ranks of each server
  Overlap overlap = Overlap::kPingPong;
  Order order = Order::kAligned;
  int outstanding = 0;     // nano-batches of a slot whose weight gradients wait (waiting())
  int virtual_stages = 1;  // with kAtHome, and then all stages have as many layers
  ProgramRequest::Kind kind = ProgramRequest::Kind::kTrain;
  Gradients gradients = {};
  AttentionShape shape = {.num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8};
  ExchangeTypes types = {};
  int64_t least_share_pairs = 1 << 12;  // ProgramRequest::least_share_pairs
  Program (*build)(const ProgramRequest& request) = build_program;

  int stages() const { return static_cast<int>(layers.size()); }
  int workers() const { return stages() * replicas; }
  int servers() const { return workers() + dedicated; }
};

/// `count` nano-batches of uneven documents.
inline std::vector<std::vector<int64_t>> uneven_lengths(int count) {
  std::vector<std::vector<int64_t>> lengths;
  for (int64_t n = 0; n < count; ++n) {
    lengths.push_back({400 + 90 * (n % 5), 130 + 40 * (n % 3)});
    if (n % 2 == 0) lengths.back().push_back(7 + n);
  }
  return lengths;
}

inline PipelineShape shape_of(const PipelineStyle& style) {
  const bool pairs = style.overlap == Overlap::kPingPong && style.order != Order::kAtHome;
  PipelineShape shape{.nano_batches = static_cast<int>(style.lengths.size()),
                      .slots = pairs ? 2 : 1,
                      .virtual_stages = style.virtual_stages};
  int64_t begin = 0;
  if (const int64_t count = style.virtual_stages; count > 1) {
    const int64_t each = style.layers[0] / count, stages = style.stages();
    for (int64_t stage = 0; stage < stages; ++stage)
      shape.layers.push_back({stage * each, ((count - 1) * stages + stage + 1) * each});
    return shape;
  }
  for (const int64_t layers : style.layers) {
    shape.layers.push_back({begin, begin + layers});
    begin += layers;
  }
  return shape;
}

/// Every stage leaves the weight gradients of as many nano-batches of a slot as it may, and plays
/// them one by one in ticks in which it plays no backward, or when it may leave no more.
inline WeightGradients waiting(const PipelineStyle& style, const PipelineShape& shape,
                               const std::vector<Tick>& ticks) {
  if (style.outstanding == 0) return {};
  WeightGradients all(
      ticks.size(), {static_cast<size_t>(shape.slots), std::vector<StageWeights>(style.stages())});
  for (int slot = 0; slot < shape.slots; ++slot) {
    const auto nano_of = [&](const TickStage& stage) {
      const int nano = stage.micro_batch * shape.slots + slot;
      return stage.micro_batch >= 0 && nano < shape.nano_batches ? nano : -1;
    };
    const auto is_played = [&](const Tick& tick) {
      return std::ranges::any_of(tick.stages,
                                 [&](const TickStage& of) { return nano_of(of) >= 0; });
    };
    size_t last = 0;  // in which anything of the slot is played
    for (size_t tick = 0; tick < ticks.size(); ++tick) {
      if (is_played(ticks[tick])) last = tick;
    }
    for (int stage = 0; stage < style.stages(); ++stage) {
      std::vector<int> left;
      for (size_t tick = 0; tick <= last; ++tick) {
        if (!is_played(ticks[tick])) continue;
        const TickStage& own = ticks[tick].stages[stage];
        StageWeights& weights = all[tick][slot][stage];
        const bool backward = nano_of(own) >= 0 && own.pass == Pass::kBackward;
        const bool is_full = std::ssize(left) == style.outstanding;
        while (!left.empty() && (tick == last || weights.plays.empty()) &&
               (tick == last || !backward || is_full)) {
          weights.plays.push_back(left.front());
          left.erase(left.begin());
        }
        weights.leaves = backward && !is_full && tick != last;
        if (weights.leaves) left.push_back(nano_of(own));
      }
    }
  }
  return all;
}

inline PipelineOrder order_of_ranks(const PipelineStyle& style) {
  const PipelineShape shape = shape_of(style);
  const bool trains = style.kind == ProgramRequest::Kind::kTrain;
  if (style.virtual_stages > 1) {
    return at_home_order(
        shape, interleaved_ticks(style.stages(), style.virtual_stages, shape.micro_batches()));
  }
  const std::vector<Tick> ticks =
      style.order == Order::kAligned
          ? aligned_ticks(style.stages(), shape.micro_batches(), trains)
          : one_forward_one_backward_ticks(style.stages(), shape.micro_batches());
  return style.order == Order::kAtHome
             ? at_home_order(shape, ticks,
                             weight_gradients_in_idle_ticks(ticks, trains ? style.outstanding : 0))
             : pooled_order(shape, ticks, waiting(style, shape, ticks));
}

/// The ranks of a stage, or those with one index in tensor parallelism alone.
inline std::vector<int> ranks_of_stage(const PipelineStyle& style, int stage, int index = -1) {
  std::vector<int> ranks =
      consecutive(stage * style.replicas * style.tensor, style.replicas * style.tensor);
  std::erase_if(ranks, [&](int rank) { return index >= 0 && rank % style.tensor != index; });
  return ranks;
}

/// The gradients that a rank sums: 10 blocks of 16 elements before the layers, 100 in each layer,
/// and behind them 30 and, where a head is tied, the 10 again. Where ranks divide them, 2 blocks of
/// each layer's norms, which all ranks of the stage share, lie before all others.
inline GradientExchangeRequest gradients_of_stage(const PipelineStyle& style, const Stage& stage,
                                                  int server) {
  const int index = stage.tensor.index;
  GradientExchangeRequest request{.block = 16,
                                  .bucket_elements = style.gradients.bucket_elements,
                                  .rank = server * style.tensor + index,
                                  .ranks = ranks_of_stage(style, stage.index, index),
                                  .distributed_optimizer = style.gradients.distributed_optimizer,
                                  .overlaps = style.gradients.overlaps,
                                  .weight_offset = [](int64_t element) { return 2 * element; }};
  const auto add = [&](OpKind phase, int layer, int64_t blocks) {
    request.phases.push_back({phase, layer, {request.elements, request.elements + 16 * blocks}});
    request.elements += 16 * blocks;
  };
  const auto for_each_layer = [&](const auto& body) {
    for (auto layer = static_cast<int>(stage.layers.begin); layer < stage.layers.end; ++layer) {
      if (stage.holds(layer)) body(layer);
    }
  };
  if (style.tensor > 1) {
    for_each_layer([&](int layer) {
      add(OpKind::kAttentionNorm, layer, 1);
      add(OpKind::kMlpNorm, layer, 1);
    });
    for (PhaseGradients& phase : request.phases) phase.holders = style.tensor;
    request.shared = {
        {.elements = {0, request.elements}, .ranks = ranks_of_stage(style, stage.index)}};
  }
  const size_t first = request.phases.size();
  if (stage.is_first()) add(OpKind::kEmbed, -1, 10);
  for_each_layer([&](int layer) {
    add(OpKind::kPreAttention, layer, 30);
    add(style.tensor > 1 ? OpKind::kOutProjection : OpKind::kPostAttention, layer, 20);
    add(OpKind::kPostAttention, layer, 50);
  });
  if (stage.is_last()) add(OpKind::kLoss, -1, 30);
  if (!style.gradients.ties || stage.count == 1) return request;
  if (stage.is_last()) add(OpKind::kLoss, -1, 10);
  if (!stage.is_first() && !stage.is_last()) return request;
  PhaseGradients& tied = stage.is_first() ? request.phases[first] : request.phases.back();
  tied.is_tied = true;
  SharedGradients both{.elements = tied.elements, .ranks = ranks_of_stage(style, 0, index)};
  const std::vector<int> of_last = ranks_of_stage(style, stage.count - 1, index);
  both.ranks.insert(both.ranks.end(), of_last.begin(), of_last.end());
  request.shared.insert(request.shared.begin(), std::move(both));
  return request;
}

/// Makes the programs of all ranks of one step.
class PipelineStep {
 public:
  explicit PipelineStep(const PipelineStyle& style) : style_(style), order_(order_of_ranks(style)) {
    for (const std::vector<int64_t>& lengths : style.lengths) homes_.push_back(home_of(lengths));
  }

  std::vector<Program> programs() {
    parts_.assign(style_.servers(), {});
    for (const OrderedExchange& exchange : order_.exchanges) add_exchange(exchange);
    std::vector<Program> programs;
    for (int server = 0; server < style_.servers(); ++server) {
      for (int index = 0; index < style_.tensor; ++index)
        programs.push_back(program_of(server, {style_.tensor, index}));
    }
    return programs;
  }
  const PipelineOrder& order() const { return order_; }

 private:
  using Parts = std::vector<std::shared_ptr<const AttentionExchange>>;

  /// Returns the layout of a nano-batch over the replicas.
  Layout home_of(const std::vector<int64_t>& lengths) const {
    if (style_.replicas > 1) {
      return make_plan({.nano_batch = NanoBatch::from_lengths(lengths),
                        .cluster = Cluster::in_place(style_.replicas),
                        .shape = style_.shape})
          .layout;
    }
    Layout layout{.workers = {{}}};
    for (size_t i = 0; i < lengths.size(); ++i)
      layout.workers[0].push_back({static_cast<int64_t>(i), {0, lengths[i]}});
    return layout;
  }

  std::shared_ptr<const AttentionExchange> part_of(const PlanIndex& index, int server) const {
    return std::make_shared<const AttentionExchange>(
        make_attention_exchange(index.exchange(server), style_.shape, style_.types));
  }

  void add_exchange(const OrderedExchange& exchange) {
    Parts& parts = made_[exchange.nano_batches];
    if (parts.empty())
      parts = style_.order == Order::kAtHome ? at_home(exchange.nano_batches[0])
                                             : pooled(exchange.nano_batches, "balanced");
    for (int server = 0; server < style_.servers(); ++server)
      parts_[server].push_back(parts[server]);
  }

  /// Returns each rank's part of a plan in which its stage alone works and serves.
  Parts at_home(int nano) const {
    Parts parts(style_.servers());
    for (int stage = 0; stage < style_.stages(); ++stage) {
      std::vector<int> alone(style_.stages(), -1);
      alone[stage] = nano;
      const Parts all = pooled(alone, "local");
      for (int replica = 0; replica < style_.replicas; ++replica) {
        const int server = stage * style_.replicas + replica;
        parts[server] = all[server];
      }
    }
    return parts;
  }

  /// Documents of the stages' nano-batches one after another, each stage's on its own ranks.
  Parts pooled(const std::vector<int>& nano_batches, const std::string& scheduler) const {
    Layout layout{.workers = std::vector<std::vector<Segment>>(style_.workers())};
    std::vector<int64_t> all;
    for (int stage = 0; stage < style_.stages(); ++stage) {
      if (nano_batches[stage] < 0) continue;
      const Layout& home = homes_[nano_batches[stage]];
      for (int replica = 0; replica < style_.replicas; ++replica) {
        for (Segment segment : home.workers[replica]) {
          segment.document += static_cast<int64_t>(all.size());
          layout.workers[stage * style_.replicas + replica].push_back(segment);
        }
      }
      const std::vector<int64_t>& lengths = style_.lengths[nano_batches[stage]];
      all.insert(all.end(), lengths.begin(), lengths.end());
    }
    const Plan plan = make_plan({.nano_batch = NanoBatch::from_lengths(all),
                                 .cluster = pool(style_.workers(), style_.dedicated, true),
                                 .shape = style_.shape,
                                 .options = {.scheduler = scheduler, .tolerance_ppm = 0}},
                                std::move(layout));
    const PlanIndex index(plan);
    Parts parts;
    for (int server = 0; server < style_.servers(); ++server)
      parts.push_back(part_of(index, server));
    return parts;
  }

  Program program_of(int server, const TensorPlace& tensor) const {
    const bool works = server < style_.workers();
    const int index = works ? server / style_.replicas : style_.stages();
    ProgramRequest request{.overlap = style_.overlap,
                           .kind = style_.kind,
                           .holds_weights = works,
                           .server = server,
                           .least_share_pairs = style_.least_share_pairs};
    request.model = {.num_layers = works ? style_.layers[index] : 0,
                     .hidden_size = 64,
                     .intermediate_size = 96,
                     .attention = style_.shape,
                     .vocab_size = 100};
    StagePart part = stage_part(shape_of(style_), order_, index, parts_[server]);
    part.stage.tensor = tensor;
    if (works) {
      for (const Layout& home : homes_) {
        const int64_t tokens = tensor.part(home.num_tokens(server % style_.replicas)).size();
        part.p2p_messages.push_back(
            p2p_messages(part.stage, server, style_.replicas, tokens * 64 * 2));
      }
      if (style_.gradients.bucket_elements > 0 && style_.kind == ProgramRequest::Kind::kTrain)
        request.gradients = std::make_shared<const GradientExchange>(
            make_gradient_exchange(gradients_of_stage(style_, part.stage, server)));
    }
    request.stage = std::move(part);
    return style_.build(request);
  }

  PipelineStyle style_;
  PipelineOrder order_;
  std::vector<Layout> homes_;               // [nano-batch]
  std::map<std::vector<int>, Parts> made_;  // by nano-batches of the stages
  std::vector<Parts> parts_;                // [server] by exchange
};

/// The layers that a rank plays for nano-batches, in order: "0a 1a 1a' " is forward of two layers
/// for the first nano-batch, and backward of the second one.
inline std::string layers_played(const Program& program) {
  std::string order;
  for (const Op& op : program.ops) {
    const bool forward = op.pass == Pass::kForward;
    if (op.kind == (forward ? OpKind::kPreAttention : OpKind::kPostAttention))
      order += short_name(op).substr(forward ? 14 : 15) + " ";
  }
  return order;
}

inline std::vector<Program> pipeline_programs(const PipelineStyle& style) {
  return PipelineStep(style).programs();
}

}  // namespace distca::testing
