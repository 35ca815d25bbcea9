// Checks that nothing is missing: all phases of a stage for every nano-batch, all layer steps of
// every exchange, and all stages of the model.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "distca/program/validate/validate_checks.h"

namespace distca {
namespace {

class Complete {
 public:
  Complete(const Program& program, std::vector<std::string>& wrong)
      : program_(program), wrong_(wrong) {}

  void check() {
    for (const Op& op : program_.ops) enlist(op);
    check_phases();
    if (program_.layer_steps.size() == program_.exchanges.size()) check_exchanges();
  }

 private:
  /// With layer, nano-batch, is_receive and, of kGatherRows and kSumRows, their phase.
  using Phase = std::tuple<OpKind, Pass, int, int, bool, OpKind>;
  struct Step {
    bool dispatches = false, combines = false;
    std::array<bool, kNumTaskSets> computes{};
  };

  void enlist(const Op& op) {
    if (op.exchange >= 0) {
      Step& step = steps_[{op.exchange, op.pass}][op.layer_step];
      if (op.kind == OpKind::kDispatch) step.dispatches = true;
      if (op.kind == OpKind::kCombine) step.combines = true;
      // check_parts() says whether parts are complete.
      if (op.kind == OpKind::kCoreAttention) step.computes[static_cast<size_t>(op.tasks)] = true;
      return;
    }
    const OpKind of_phase = is_of_tensor(op.kind) ? op.of_phase : OpKind::kEmbed;
    if (op.bucket < 0)
      phases_.insert({op.kind, op.pass, op.layer, op.nano_batch, op.is_receive, of_phase});
    if (op.leaves_weights && op.pass == Pass::kBackward) ++left_[{op.layer, op.nano_batch}];
    if (op.leaves_weights && op.pass == Pass::kForward)
      report(wrong_, "{} leaves weight gradients", describe(op));
    if (op.nano_batch >= 0 && op.pass == Pass::kBackward) trains_ = true;
    if (op.kind == OpKind::kOptimizer) updates_ = true;
  }

  void expect(OpKind kind, Pass pass, int layer, int nano, bool is_receive = false,
              OpKind of_phase = OpKind::kEmbed) {
    if (phases_.contains({kind, pass, layer, nano, is_receive, of_phase})) return;
    const Op missing{.kind = kind,
                     .pass = pass,
                     .layer = layer,
                     .nano_batch = nano,
                     .is_receive = is_receive,
                     .of_phase = of_phase};
    report(wrong_, "there is no {}", describe(missing));
  }

  void check_phases() {
    const Stage& stage = program_.stage;
    if (stage.layers.empty()) return;
    for (int nano = 0; nano < program_.num_nano_batches; ++nano) {
      check_pass(Pass::kForward, nano);
      if (trains_) check_pass(Pass::kBackward, nano);
    }
    if (!trains_) return;
    expect(OpKind::kGradNorm, Pass::kBackward, -1, -1);
    if (!updates_) report(wrong_, "there is no {}", op_name(OpKind::kOptimizer));
  }
  void check_pass(Pass pass, int nano) {
    const Stage& stage = program_.stage;
    const bool forward = pass == Pass::kForward;
    const auto end = [&](bool is_end, OpKind kind, bool is_receive) {
      is_end ? expect(kind, pass, -1, nano) : expect(OpKind::kP2p, pass, -1, nano, is_receive);
    };
    end(stage.is_first(), OpKind::kEmbed, /*is_receive=*/forward);
    end(stage.is_last(), OpKind::kLoss, /*is_receive=*/!forward);
    for (auto layer = static_cast<int>(stage.layers.begin); layer < stage.layers.end; ++layer) {
      expect(OpKind::kPreAttention, pass, layer, nano);
      expect(OpKind::kPostAttention, pass, layer, nano);
      check_divided(pass, layer, nano);
      if (!forward) check_weight_gradient(layer, nano);
    }
    const OpKind of_embedding = forward ? OpKind::kSumRows : OpKind::kGatherRows;
    if (stage.is_first() && stage.tensor.size > 1) expect(of_embedding, pass, -1, nano);
  }
  /// Parts of phases that ranks divide, and the rows that travel between them.
  void check_divided(Pass pass, int layer, int nano) {
    if (program_.stage.tensor.size == 1) return;
    for (const OpKind kind : {OpKind::kAttentionNorm, OpKind::kOutProjection, OpKind::kMlpNorm})
      expect(kind, pass, layer, nano);
    const auto [read, written] = pass == Pass::kForward
                                     ? std::pair(OpKind::kPreAttention, OpKind::kOutProjection)
                                     : std::pair(OpKind::kOutProjection, OpKind::kPreAttention);
    for (const OpKind phase : {OpKind::kPostAttention, read})
      expect(OpKind::kGatherRows, pass, layer, nano, false, phase);
    for (const OpKind phase : {OpKind::kPostAttention, written})
      expect(OpKind::kSumRows, pass, layer, nano, false, phase);
  }
  /// Weight gradients are computed if both phases of the layer have left them, and only then.
  void check_weight_gradient(int layer, int nano) {
    const int leaving = left_[{layer, nano}];
    const Op op{.kind = OpKind::kWeightGradient,
                .pass = Pass::kBackward,
                .layer = layer,
                .nano_batch = nano};
    const int phases = program_.stage.tensor.size > 1 ? 3 : 2;
    if (leaving > 0 && leaving < phases) {
      report(wrong_, "{} of {} phases leave {}", leaving, phases, describe(op));
    } else if (leaving > 0) {
      expect(op.kind, op.pass, layer, nano);
    } else if (phases_.contains({op.kind, op.pass, layer, nano, false, OpKind::kEmbed})) {
      report(wrong_, "nothing is left for {}", describe(op));
    }
  }

  /// An exchange is played in at least one pass, and there in all its layer steps.
  void check_exchanges() {
    for (int exchange = 0; exchange < static_cast<int>(program_.exchanges.size()); ++exchange) {
      bool is_played = program_.layer_steps[exchange] == 0;
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        if (!steps_.contains({exchange, pass})) continue;
        is_played = true;
        for (int step = 0; step < program_.layer_steps[exchange]; ++step)
          check_step(exchange, pass, step);
      }
      if (!is_played) report(wrong_, "exchange {} is never played", exchange);
    }
  }
  void check_step(int exchange, Pass pass, int number) {
    const Step step = steps_[{exchange, pass}][number];
    const auto want = [&](bool is_there, const char* what) {
      if (is_there) return;
      report(wrong_, "{}: layer step {} of exchange {} has no {}", pass_name(pass), number,
             exchange, what);
    };
    want(step.dispatches, "dispatch");
    want(step.combines, "combine");
    if (step.computes[static_cast<size_t>(TaskSet::kAll)]) return;
    want(std::ranges::find(step.computes, true) != step.computes.end(), "core_attention");
    for (const TaskSet set : {TaskSet::kHomeFirst, TaskSet::kAway, TaskSet::kHomeRest}) {
      const bool is_empty = program_.exchanges[exchange]->tasks_of(set).empty();
      want(is_empty || step.computes[static_cast<size_t>(set)], task_set_name(set));
    }
  }

  const Program& program_;
  std::vector<std::string>& wrong_;
  std::set<Phase> phases_;
  std::map<std::pair<int, int>, int> left_;  // by layer and nano-batch: phases that leave weights
  std::map<std::pair<int, Pass>, std::map<int, Step>> steps_;  // by exchange and pass: layer steps
  bool trains_ = false, updates_ = false;
};

}  // namespace

void check_complete(const Program& program, std::vector<std::string>& wrong) {
  Complete(program, wrong).check();
}

namespace {

/// A server's ranks are neighbours, by their index in tensor parallelism, and have the same rows.
void check_servers(std::span<const Program> programs, std::vector<std::string>& wrong) {
  const int size = programs.empty() ? 1 : programs[0].stage.tensor.size;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    const Program& program = programs[rank];
    const TensorPlace& place = program.stage.tensor;
    const Program& first = programs[rank - rank % size];
    if (place.size != size || place.index != static_cast<int>(rank) % size ||
        (size > 1 && program.server != static_cast<int>(rank) / size)) {
      report(wrong, "rank {}: is number {} of {} in server {}, others have {}", rank, place.index,
             place.size, program.server, size);
    } else if (!std::ranges::equal(program.tensor_rows, first.tensor_rows, {}, &TensorRows::rows,
                                   &TensorRows::rows)) {
      report(wrong, "rank {}: has other rows than the first of its server", rank);
    }
  }
}

}  // namespace

void check_stages(std::span<const Program> programs, std::vector<std::string>& wrong) {
  check_servers(programs, wrong);
  std::map<int, const Program*> of_stages;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    const Program& program = programs[rank];
    if (program.stage.layers.empty()) continue;
    const auto [place, is_new] = of_stages.emplace(program.stage.index, &program);
    const Program& other = *place->second;
    Stage expected = other.stage;
    expected.tensor = program.stage.tensor;
    if (!is_new &&
        (program.stage != expected || program.num_nano_batches != other.num_nano_batches)) {
      report(wrong, "rank {}: another stage {} than that of ranks before it", rank,
             program.stage.index);
    }
  }
  int64_t layers = 0;
  int next = 0;
  for (const auto& [index, program] : of_stages) {
    const Stage& stage = program->stage;
    if (index != next || stage.layers.begin != layers ||
        stage.count != static_cast<int>(of_stages.size()) ||
        program->num_nano_batches != of_stages.begin()->second->num_nano_batches) {
      report(wrong,
             "stage {} of {} has layers {} to {} and {} nano-batches; {} layers lie before it",
             index, stage.count, stage.layers.begin, stage.layers.end, program->num_nano_batches,
             layers);
    }
    layers = stage.layers.end;
    ++next;
  }
}

}  // namespace distca
