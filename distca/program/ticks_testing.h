#pragma once
// How a later issue's pipeline looks as programs (paper 4.1, figure 8): two stages of two layers
// each, two micro-batches of one nano-batch each. All stages run the same pass in a tick; core
// attention of everything in flight in a tick is pooled; a stage that has no micro-batch in a tick
// serves attention alone; activations, and their gradients, are handed over between ticks. Keys are
// sent again in backward, whose ticks pool other micro-batches than forward's.

#include <utility>
#include <vector>

#include "distca/program/program.h"

namespace distca::testing {

class TickStage {
 public:
  static constexpr int kLayers = 2;  // of a stage
  static constexpr int64_t kMessageBytes = 640;

  explicit TickStage(int stage) : stage_(stage) {
    for (int role = 0; role <= static_cast<int>(BufferRole::kActivationIn); ++role) {
      program_.buffers.push_back({.role = static_cast<BufferRole>(role), .bytes = kMessageBytes});
    }
  }

  /// `micro[s]`: micro-batch of stage s in this tick, -1: none.
  void tick(int number, Pass pass, const int (&micro)[2]) {
    const bool forward = pass == Pass::kForward;
    const int other = 1 - stage_;
    const bool works = micro[stage_] >= 0, serves = micro[other] >= 0;
    const int nano = works ? micro[stage_] : micro[other];
    const int first = kLayers * (works ? stage_ : other);
    if (works && forward && stage_ == 0) phase(OpKind::kEmbed, pass, -1, nano);
    if (works && !forward && stage_ == 1) phase(OpKind::kLoss, pass, -1, nano);
    for (int i = 0; i < kLayers; ++i) {
      const int layer = first + (forward ? i : kLayers - 1 - i);
      const auto tag = static_cast<uint32_t>(1 + (number * kLayers + i) * 3);
      if (works) phase(forward ? OpKind::kPre : OpKind::kPost, pass, layer, nano);
      if (!forward) exchange(OpKind::kResend, pass, layer, nano, tag, works, serves);
      exchange(OpKind::kEnter, pass, layer, nano, tag + 1, works, serves);
      attend(pass, layer, nano, serves);
      exchange(OpKind::kLeave, pass, layer, nano, tag + 2, serves, works);
      if (works) phase(forward ? OpKind::kPost : OpKind::kPre, pass, layer, nano);
    }
    if (works && forward && stage_ == 1) phase(OpKind::kLoss, pass, -1, nano);
    if (works && !forward && stage_ == 0) phase(OpKind::kEmbed, pass, -1, nano);
    const int giver = forward ? 0 : 1;
    if (micro[giver] < 0) return;
    exchange(OpKind::kHandOver, pass, kLayers, micro[giver], 1000 + static_cast<uint32_t>(number),
             stage_ == giver, stage_ != giver);
  }

  void end_step() {
    phase(OpKind::kGradientSum, Pass::kBackward, -1, -1);
    phase(OpKind::kOptimizer, Pass::kBackward, -1, -1);
  }
  Program take() { return std::move(program_); }

 private:
  /// Each operation waits for the one before: a schedule of ticks will wait for less.
  void add(Op op) {
    const auto self = static_cast<int32_t>(program_.ops.size());
    if (self > 0) {
      op.deps = {self - 1};
      if (program_.ops.back().stream == Stream::kComm) op.sent = {self - 1};
    }
    op.micro_batch = op.nano_batch;
    program_.ops.push_back(std::move(op));
  }
  void phase(OpKind kind, Pass pass, int layer, int nano) {
    add({.kind = kind, .pass = pass, .layer = layer, .nano_batch = nano});
  }
  void attend(Pass pass, int layer, int nano, bool serves) {
    Op op{.kind = OpKind::kAttend, .pass = pass, .layer = layer, .nano_batch = nano};
    const bool forward = pass == Pass::kForward;
    if (serves) {
      op.reads = {buffer(BufferRole::kQkvIn)};
      if (!forward) op.reads.push_back(buffer(BufferRole::kDOIn));
      op.writes = {buffer(forward ? BufferRole::kOOut : BufferRole::kGradientOut)};
    }
    add(std::move(op));
  }
  void exchange(OpKind kind, Pass pass, int layer, int nano, uint32_t tag, bool sends,
                bool receives) {
    const auto [out, in] = roles(kind, pass);
    Op op{.kind = kind,
          .pass = pass,
          .stream = Stream::kComm,
          .layer = layer,
          .nano_batch = nano,
          .tag = tag};
    const OpMessage message{.peer = 1 - stage_, .offset = 0, .bytes = kMessageBytes};
    if (sends) {
      op.sends = {message};
      op.out = buffer(out);
      op.bytes = kMessageBytes;
      if (kind != OpKind::kLeave) op.writes = {op.out};  // what leaves is where attend has put it
    }
    if (receives) {
      op.receives = {message};
      op.in = buffer(in);
    }
    add(std::move(op));
  }
  static std::pair<BufferRole, BufferRole> roles(OpKind kind, Pass pass) {
    const bool forward = pass == Pass::kForward;
    if (kind == OpKind::kHandOver) return {BufferRole::kActivationOut, BufferRole::kActivationIn};
    if (kind == OpKind::kLeave) {
      return forward ? std::pair{BufferRole::kOOut, BufferRole::kOIn}
                     : std::pair{BufferRole::kGradientOut, BufferRole::kGradientIn};
    }
    return kind == OpKind::kResend || forward ? std::pair{BufferRole::kQkvOut, BufferRole::kQkvIn}
                                              : std::pair{BufferRole::kDOOut, BufferRole::kDOIn};
  }
  static int32_t buffer(BufferRole role) { return static_cast<int32_t>(role); }

  int stage_;
  Program program_;
};

/// The programs of both stages: M micro-batches and P stages take M + P - 1 ticks a pass.
inline std::vector<Program> tick_programs() {
  std::vector<Program> programs;
  for (int stage = 0; stage < 2; ++stage) {
    TickStage ticks(stage);
    ticks.tick(0, Pass::kForward, {0, -1});
    ticks.tick(1, Pass::kForward, {1, 0});
    ticks.tick(2, Pass::kForward, {-1, 1});
    ticks.tick(3, Pass::kBackward, {-1, 0});
    ticks.tick(4, Pass::kBackward, {0, 1});
    ticks.tick(5, Pass::kBackward, {1, -1});
    ticks.end_step();
    programs.push_back(ticks.take());
  }
  return programs;
}

}  // namespace distca::testing
