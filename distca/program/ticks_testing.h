#pragma once
// A pipeline's programs made by hand (paper 4.1, figure 8): two stages, one rank each, and two
// micro-batches of one nano-batch each. All stages play the same pass in a tick, and core attention
// of all that is in flight in a tick is pooled: one plan, one exchange. A stage that has no
// micro-batch in a tick serves attention alone. Backward's ticks pool other micro-batches than
// forward's, so every layer's backward follows another plan than its forward, and Q, K, V are sent
// again. Stages hand nothing over: each layer's inputs are given.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"
#include "distca/program/program.h"

namespace distca::testing {

inline constexpr int kStages = 2;
inline constexpr int kStageLayers = 2;  // of a stage

/// What the stages do in a tick.
struct Tick {
  Pass pass = Pass::kForward;
  int micro_batch[kStages] = {-1, -1};  // -1: serves alone
};
inline const std::vector<Tick>& ticks() {
  static const std::vector<Tick> all = {{Pass::kForward, {0, -1}}, {Pass::kForward, {1, 0}},
                                        {Pass::kForward, {-1, 1}}, {Pass::kBackward, {-1, 0}},
                                        {Pass::kBackward, {0, 1}}, {Pass::kBackward, {1, -1}}};
  return all;
}

/// The plan of one tick: documents of the stages' micro-batches one after another, each stage's on
/// its own rank, tasks on both. `lengths`: of documents [micro-batch].
inline Plan tick_plan(const Tick& tick, const std::vector<std::vector<int64_t>>& lengths,
                      const AttentionShape& shape) {
  Layout layout{.workers = std::vector<std::vector<Segment>>(kStages)};
  std::vector<int64_t> all;
  for (int stage = 0; stage < kStages; ++stage) {
    if (tick.micro_batch[stage] < 0) continue;
    for (const int64_t length : lengths[static_cast<size_t>(tick.micro_batch[stage])]) {
      layout.workers[static_cast<size_t>(stage)].push_back(
          {.document = static_cast<int64_t>(all.size()), .tokens = {0, length}});
      all.push_back(length);
    }
  }
  return make_plan({.nano_batch = NanoBatch::from_lengths(all),
                    .cluster = Cluster::in_place(kStages),
                    .shape = shape,
                    .options = {.tolerance_ppm = 0}},
                   std::move(layout));
}

/// The program of one stage. Each operation waits for the one before.
class StageProgram {
 public:
  /// `exchanges`: this rank's, [tick].
  StageProgram(int stage, std::vector<std::shared_ptr<const AttentionExchange>> exchanges)
      : stage_(stage) {
    program_.exchanges = std::move(exchanges);
    for (int role = 0; role < kNumBufferRoles; ++role) {
      program_.buffers.push_back({.role = static_cast<BufferRole>(role), .bytes = 0});
    }
    for (size_t tick = 0; tick < ticks().size(); ++tick) add_tick(static_cast<int>(tick));
    phase(OpKind::kGradNorm, Pass::kBackward, -1, -1);
    phase(OpKind::kOptimizer, Pass::kBackward, -1, -1);
  }
  Program take() { return std::move(program_); }

 private:
  void add_tick(int number) {
    const Tick& tick = ticks()[static_cast<size_t>(number)];
    const bool forward = tick.pass == Pass::kForward;
    const int nano = tick.micro_batch[stage_];
    for (int step = 0; step < kStageLayers; ++step) {
      const int layer = kStageLayers * stage_ + (forward ? step : kStageLayers - 1 - step);
      const Op part{.pass = tick.pass,
                    .layer = nano < 0 ? -1 : layer,
                    .micro_batch = nano,
                    .nano_batch = nano,
                    .exchange = number,
                    .layer_step = step};
      if (nano >= 0)
        phase(forward ? OpKind::kPreAttention : OpKind::kPostAttention, tick.pass, layer, nano);
      if (!forward) communicate(part, OpKind::kRedispatch);
      communicate(part, OpKind::kDispatch);
      core_attention(part);
      communicate(part, OpKind::kCombine);
      if (nano >= 0)
        phase(forward ? OpKind::kPostAttention : OpKind::kPreAttention, tick.pass, layer, nano);
    }
  }

  void add(Op op) {
    const auto self = static_cast<int32_t>(program_.ops.size());
    if (self > 0) {
      op.wait_for = {self - 1};
      if (program_.ops.back().stream == Stream::kComm) op.wait_sends = {self - 1};
    }
    program_.ops.push_back(std::move(op));
  }
  void phase(OpKind kind, Pass pass, int layer, int nano) {
    add({.kind = kind, .pass = pass, .layer = layer, .micro_batch = nano, .nano_batch = nano});
  }
  /// One of each role, as large as any tick wants it; -1 for no messages.
  int32_t buffer(BufferRole role, const MessageList& list) {
    if (list.empty()) return -1;
    int64_t& bytes = program_.buffers[static_cast<size_t>(role)].bytes;
    bytes = std::max(bytes, list.buffer_bytes);
    return static_cast<int32_t>(role);
  }
  void core_attention(Op op) {
    op.kind = OpKind::kCoreAttention;
    const AttentionExchange& exchange = *program_.exchanges[static_cast<size_t>(op.exchange)];
    const auto use = [&](std::vector<int32_t>& list, BufferRole role, Content content) {
      const int32_t used = buffer(role, exchange.homes(content));
      if (used >= 0) list.push_back(used);
    };
    use(op.reads, BufferRole::kQkvIn, Content::kQkv);
    if (op.pass == Pass::kForward) {
      use(op.writes, BufferRole::kOOut, Content::kO);
    } else {
      use(op.reads, BufferRole::kDOIn, Content::kDO);
      use(op.writes, BufferRole::kGradientOut, Content::kGradient);
    }
    add(std::move(op));
  }
  void communicate(Op op, OpKind kind) {
    op.kind = kind;
    op.stream = Stream::kComm;
    const bool forward = op.pass == Pass::kForward;
    const bool qkv = kind == OpKind::kRedispatch || forward;
    const auto [out, in] =
        kind == OpKind::kCombine
            ? (forward ? std::pair{BufferRole::kOOut, BufferRole::kOIn}
                       : std::pair{BufferRole::kGradientOut, BufferRole::kGradientIn})
            : (qkv ? std::pair{BufferRole::kQkvOut, BufferRole::kQkvIn}
                   : std::pair{BufferRole::kDOOut, BufferRole::kDOIn});
    op.tag = static_cast<uint32_t>(1 + (op.exchange * kStageLayers + op.layer_step) * 3 +
                                   (kind == OpKind::kRedispatch ? 0
                                    : kind == OpKind::kDispatch ? 1
                                                                : 2));
    op.out = buffer(out, program_.sends(op));
    op.in = buffer(in, program_.receives(op));
    if (kind != OpKind::kCombine && op.out >= 0) op.writes = {op.out};
    add(std::move(op));
  }

  int stage_;
  Program program_;
};

/// The programs of both stages: M micro-batches and P stages take M + P - 1 ticks a pass. Gradients
/// travel in the type in which they are summed.
inline std::vector<Program> tick_programs(const std::vector<std::vector<int64_t>>& lengths,
                                          const AttentionShape& shape, const ExchangeTypes& types) {
  std::vector<std::vector<std::shared_ptr<const AttentionExchange>>> exchanges(kStages);
  for (const Tick& tick : ticks()) {
    const Plan plan = tick_plan(tick, lengths, shape);
    const PlanIndex index(plan);
    for (int stage = 0; stage < kStages; ++stage) {
      exchanges[static_cast<size_t>(stage)].push_back(std::make_shared<const AttentionExchange>(
          make_attention_exchange(index.exchange(stage), shape, types)));
    }
  }
  std::vector<Program> programs;
  for (int stage = 0; stage < kStages; ++stage) {
    programs.push_back(
        StageProgram(stage, std::move(exchanges[static_cast<size_t>(stage)])).take());
  }
  return programs;
}

}  // namespace distca::testing
