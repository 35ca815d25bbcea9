#include "distca/forecast/simulate_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "distca/base/error.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/op_prices.h"
#include "distca/sim/player.h"

namespace distca {
namespace {

/// True if every rank of a server computes and sends as much as its first one. Key heads that are
/// fewer than the ranks are held by several of them alike, and all else but the vocabulary is
/// divided evenly.
bool are_alike(const Config& config) {
  return config.model.vocab_size % config.tensor_ranks() == 0;
}

double seconds_of(int64_t picoseconds) { return 1e-12 * static_cast<double>(picoseconds); }

/// Programs share their lists of messages, so this many operations and messages take some 6 GiB.
constexpr int64_t kMostTogether = int64_t{1} << 26;

/// The programs that are played, and what their ranks keep.
class Run {
 public:
  Run(const Config& config, const BatchPlans& plans, int num_workers)
      : run_(run_grid(config, num_workers)), step_(are_alike(config) ? run_.tensor : 1) {
    const BatchPrograms made(config, plans, ProgramRequest::Kind::kTrain, num_workers);
    for (int rank = 0; rank < run_.num_ranks(); rank += step_) {
      programs_.push_back(made.of(rank));
      if (rank == 0) {
        check_size_together(programs_[0], run_.num_ranks() / step_, "distca simulate",
                            kMostTogether);
      }
      PeakOfRank peak(config, rank, num_workers);
      peak.add(programs_.back());
      peaks_.push_back(peak.peak());
    }
  }

  const std::vector<Program>& programs() const { return programs_; }
  bool plays_one_of_each_server() const { return step_ > 1; }

  TimedStep play(const MachinePrices& prices, const Machine& machine) const {
    return timed_step(programs_, prices, wire_of(machine));
  }

  StepParts parts_of(const TimedStep& step, size_t program) const {
    int64_t attention = 0;
    for (size_t i = 0; i < programs_[program].ops.size(); ++i) {
      const TimedOp& played = step.ops[program][i];
      if (programs_[program].ops[i].kind == OpKind::kCoreAttention)
        attention += played.end_ps - played.begin_ps;
    }
    const RankTime& time = step.ranks[program];
    return {.attention = seconds_of(attention),
            .linear = seconds_of(time.computed_ps - attention),
            .copied = seconds_of(time.copied_ps),
            .issued = seconds_of(time.issued_ps + time.core_ps),
            .late = seconds_of(time.late_ps),
            .exposed = seconds_of(time.exposed_ps),
            .idle = seconds_of(step.length_ps - time.end_ps)};
  }

  /// "stage 0", "workers" without a pipeline, "servers".
  std::string stage_name(size_t program) const {
    const int server = run_.server_of(static_cast<int>(program) * step_);
    if (server >= run_.grid.num_workers()) return "servers";
    return run_.is_pipeline() ? fmt::format("stage {}", run_.grid.stage(server)) : "workers";
  }

  std::vector<SimulatedStage> stages(const TimedStep& step) const {
    std::vector<SimulatedStage> stages;
    std::vector<double> ranks;
    for (size_t i = 0; i < programs_.size(); ++i) {
      if (stages.empty() || stages.back().name != stage_name(i)) {
        stages.push_back({.name = stage_name(i)});
        ranks.push_back(0);
      }
      SimulatedStage& stage = stages.back();
      const StepParts parts = parts_of(step, i);
      for (const auto part : kParts) stage.mean.*part += parts.*part;
      ranks.back() += 1;
      if (ranks.back() == 1 || peaks_[i].total() > stage.peak.total()) {
        stage.peak = peaks_[i];
        stage.peak_rank = static_cast<int>(i) * step_;
      }
    }
    for (size_t i = 0; i < stages.size(); ++i) {
      for (const auto part : kParts) stages[i].mean.*part /= ranks[i];
    }
    return stages;
  }

 private:
  static constexpr std::array kParts{&StepParts::attention, &StepParts::linear, &StepParts::copied,
                                     &StepParts::issued,    &StepParts::late,   &StepParts::exposed,
                                     &StepParts::idle};

  const RunGrid run_;
  const int step_;  // from one played rank to the next
  std::vector<Program> programs_;
  std::vector<PeakMemory> peaks_;  // [program]
};

/// The machine with one number better: times shorter, rates higher. Nothing where that cannot be
/// said of it.
std::optional<Machine> better(const Machine& machine, MachineNumber number) {
  Machine changed = machine;
  double& value = changed.at(number).value;
  switch (number) {
    case MachineNumber::kPeakTflops:
    case MachineNumber::kRanksPerNode:
    case MachineNumber::kInOrder:
    case MachineNumber::kMemoryGib:
      return std::nullopt;
    case MachineNumber::kAttentionCallUs:
    case MachineNumber::kIssueUs:
    case MachineNumber::kInsideLatencyUs:
    case MachineNumber::kBetweenLatencyUs:
      value /= 1 + kBetter;
      return changed;
    default:
      value *= 1 + kBetter;
      return changed;
  }
}

}  // namespace

SimulatedStep simulate_step(const Config& config, const Batch& batch, int num_workers,
                            const Machine& machine) {
  const BatchPlans plans = plan_later_batch(config, batch, num_workers);
  SimulatedStep step;
  step.figures.hash = plans_hash(plans);
  std::vector<RankSample> work;
  add_plan_figures(config, batch, plans, num_workers, &step.figures, &work);
  const Run run(config, plans, num_workers);
  MachinePrices prices(config, machine, run.programs());
  const TimedStep played = run.play(prices, machine);
  step.one_of_each_server = run.plays_one_of_each_server();
  step.seconds = seconds_of(played.length_ps);
  step.stages = run.stages(played);
  const auto ranks = static_cast<double>(run.programs().size());
  double most_linear = 0, attention = 0;
  for (size_t i = 0; i < run.programs().size(); ++i) {
    const StepParts parts = run.parts_of(played, i);
    step.busy_s += parts.computed() / ranks;
    attention += parts.attention / ranks;
    most_linear = std::max(most_linear, parts.linear);
  }
  step.even_attention_s = most_linear + attention;
  step.tokens_per_s = static_cast<double>(step.figures.tokens) / step.seconds;
  step.share_of_peak = config.model.train_flops(step.figures.tokens, step.figures.pairs) /
                       (step.seconds * num_ranks(config, num_workers) *
                        machine.of(MachineNumber::kPeakTflops) * 1e12);
  for (int i = 0; i < kNumMachineNumbers; ++i) {
    const auto number = static_cast<MachineNumber>(i);
    const std::optional<Machine> changed = better(machine, number);
    if (!changed) continue;
    prices.use(*changed);
    const double shorter = 1 - seconds_of(run.play(prices, *changed).length_ps) / step.seconds;
    if (shorter > 0) step.sensitivities.push_back({number, shorter});
  }
  std::ranges::stable_sort(step.sensitivities, std::greater(), &Sensitivity::shorter);
  return step;
}

}  // namespace distca
