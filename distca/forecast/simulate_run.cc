#include "distca/forecast/simulate_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "distca/base/error.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/op_prices.h"
#include "distca/forecast/setting_bounds.h"
#include "distca/sim/player.h"
#include "distca/sim/step_links.h"

namespace distca {
namespace {

/// True if every rank of a server computes and sends as much as its first one. Key heads that are
/// fewer than the ranks are held by several of them alike, and all else but the vocabulary is
/// divided evenly.
bool are_alike(const Config& config) {
  return config.model.vocab_size % config.tensor_ranks() == 0;
}

double seconds_of(int64_t picoseconds) { return 1e-12 * static_cast<double>(picoseconds); }

/// The time of every step besides its operations.
double besides_s(const Machine& machine) { return 1e-6 * machine.of(MachineNumber::kStepUs); }

/// Programs share their lists of messages, so this many operations and messages take some 8 GiB.
constexpr int64_t kMostTogether = 80'000'000;

/// The programs that are played, and what their ranks keep.
class Run {
 public:
  Run(const Config& config, const BatchPlans& plans, int num_workers, int threads)
      : run_(run_grid(config, num_workers)),
        step_(are_alike(config) ? run_.tensor : 1),
        threads_(threads) {
    const BatchPrograms made(config, plans, ProgramRequest::Kind::kTrain, num_workers);
    const int count = (run_.num_ranks() + step_ - 1) / step_;
    programs_.resize(static_cast<size_t>(count));
    peaks_.resize(programs_.size());
    programs_[0] = made.of(0);
    check_size_together(programs_[0], count, "distca simulate", kMostTogether);
    for_each_in_parallel(programs_.size(), threads, [&](size_t i) {
      const int rank = static_cast<int>(i) * step_;
      if (i > 0) programs_[i] = made.of(rank);
      peaks_[i] = PeakOfRank(config, rank, num_workers).add(programs_[i]).peak();
    });
  }

  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  /// Millions of small lists are freed.
  ~Run() {
    for_each_in_parallel(programs_.size(), threads_, [&](size_t i) { programs_[i] = {}; });
  }

  const std::vector<Program>& programs() const { return programs_; }
  bool plays_one_of_each_server() const { return step_ > 1; }
  /// The one whose program stands for a rank.
  int played_rank(int rank) const { return rank - rank % step_; }

  /// [program]
  std::vector<StepParts> parts_of(const TimedStep& step, const Machine& machine,
                                  int threads) const {
    std::vector<StepParts> parts(programs_.size());
    for_each_in_parallel(parts.size(), threads, [&](size_t i) {
      parts[i] = parts_of_program(step, i);
      parts[i].besides = besides_s(machine);
    });
    return parts;
  }

  PlayedStep played(const MachinePrices& prices, const TimedStep& step) const {
    return {.run = run_, .programs = programs_, .prices = prices, .step = step};
  }

  /// "stage 0", "workers" without a pipeline, "servers".
  std::string stage_name(size_t program) const {
    const int server = run_.server_of(static_cast<int>(program) * step_);
    if (server >= run_.grid.num_workers()) return "servers";
    return run_.is_pipeline() ? fmt::format("stage {}", run_.grid.stage(server)) : "workers";
  }

  /// `parts` [program]. Without any, stages have their peaks alone.
  std::vector<SimulatedStage> stages(const std::vector<StepParts>& parts) const {
    std::vector<SimulatedStage> stages;
    std::vector<double> ranks;
    for (size_t i = 0; i < programs_.size(); ++i) {
      if (stages.empty() || stages.back().name != stage_name(i)) {
        stages.push_back({.name = stage_name(i)});
        ranks.push_back(0);
      }
      SimulatedStage& stage = stages.back();
      for (const auto& [_, part] : kStepParts)
        stage.mean.*part += parts.empty() ? 0 : parts[i].*part;
      ranks.back() += 1;
      if (ranks.back() == 1 || peaks_[i].total() > stage.peak.total()) {
        stage.peak = peaks_[i];
        stage.peak_rank = static_cast<int>(i) * step_;
      }
    }
    for (size_t i = 0; i < stages.size(); ++i) {
      for (const auto& [_, part] : kStepParts) stages[i].mean.*part /= ranks[i];
    }
    return stages;
  }

  /// SimulatedStage::memory.
  void add_memory(const Config& config, const TimedStep& step,
                  std::vector<SimulatedStage>& stages) const {
    for (SimulatedStage& stage : stages) {
      const auto program = static_cast<size_t>(stage.peak_rank / step_);
      stage.memory = memory_over_time(config, programs_[program], stage.peak_rank,
                                      run_.num_workers(), step.ops[program]);
    }
  }

 private:
  StepParts parts_of_program(const TimedStep& step, size_t program) const {
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
            .idle = seconds_of(step.length_ps - time.end_ps),
            .besides = 0};
  }

  const RunGrid run_;
  const int step_;  // from one played rank to the next
  const int threads_;
  std::vector<Program> programs_;
  std::vector<PeakMemory> peaks_;  // [program]
};

using enum MachineNumber;
constexpr std::array kTimes = {kAttentionCallUs, kIssueUs, kStepUs, kInsideLatencyUs,
                               kBetweenLatencyUs};
/// Numbers of which none is better, or that no step depends on.
constexpr std::array kNeither = {kPeakTflops, kRanksPerNode, kInOrder, kMemoryGib};
/// Numbers of the wire alone: all operations take as long as before.
constexpr std::array kOfWire = {kInsideGbPerS, kInsideLatencyUs, kBetweenGbPerS, kBetweenLatencyUs,
                                kBurstKib};

bool is_one_of(std::span<const MachineNumber> numbers, MachineNumber number) {
  return std::ranges::find(numbers, number) != numbers.end();
}

/// The machine with one number better: times shorter, rates higher. Nothing where that cannot be
/// said of it.
std::optional<Machine> better(const Machine& machine, MachineNumber number) {
  if (is_one_of(kNeither, number) || (number == kPhaseRate && machine.phases.empty()))
    return std::nullopt;
  Machine changed = machine;
  double& value = changed.at(number).value;
  value = is_one_of(kTimes, number) ? value / (1 + kBetter) : value * (1 + kBetter);
  return changed;
}

/// The machines with one number better, first those whose prices stay.
std::vector<std::pair<MachineNumber, Machine>> better_machines(const Machine& machine) {
  std::vector<std::pair<MachineNumber, Machine>> machines;
  for (const bool of_wire : {true, false}) {
    for (int i = 0; i < kNumMachineNumbers; ++i) {
      const auto number = static_cast<MachineNumber>(i);
      const std::optional<Machine> changed = better(machine, number);
      if (is_one_of(kOfWire, number) == of_wire && changed &&
          changed->of(number) != machine.of(number))
        machines.emplace_back(number, *changed);
    }
  }
  return machines;
}

/// Plays the step on all machines, the first of which is the run's: some together on each thread.
/// Returns the step on the first, and the lengths on all.
TimedTogether play_on_all(const StepLinks& links, const std::vector<PlayedOn>& machines,
                          int threads) {
  const size_t count = machines.size(),
               least = (count + kMostMachinesTogether - 1) / kMostMachinesTogether,
               groups = std::max(least, std::min(count, static_cast<size_t>(threads)));
  std::vector<TimedTogether> played(groups);
  for_each_in_parallel(groups, threads, [&](size_t i) {
    const size_t begin = count * i / groups, end = count * (i + 1) / groups;
    played[i] = timed_together(links, std::span(machines).subspan(begin, end - begin),
                               /*with_first=*/i == 0);
  });
  TimedTogether all{.first = std::move(played[0].first)};
  for (const TimedTogether& one : played)
    all.lengths_ps.insert(all.lengths_ps.end(), one.lengths_ps.begin(), one.lengths_ps.end());
  return all;
}

/// Plays the step, and sets its length, its sensitivities and the ranks of its trace.
TimedStep play(const Config& config, const Run& run, const Machine& machine,
               const SimulateOptions& options, SimulatedStep& step) {
  const StepLinks links(run.programs(), wire_of(machine).ranks_per_node, options.threads);
  MachinePrices prices(config, machine, run.programs(), options.threads);
  for (const auto& [rank, speed] : options.slow_ranks)
    prices.slow_down(run.played_rank(rank), speed);
  std::vector<std::pair<MachineNumber, Machine>> all;
  if (options.sensitivities) all = better_machines(machine);
  std::deque<MachinePrices> changed_prices;
  std::vector<PlayedOn> machines{{.prices = &prices, .wire = wire_of(machine)}};
  for (const auto& [number, changed] : all) {
    if (number == MachineNumber::kStepUs) continue;  // the programs take as long
    const MachinePrices* of = &prices;
    if (!is_one_of(kOfWire, number)) of = &changed_prices.emplace_back(prices.on(changed));
    machines.push_back({.prices = of, .wire = wire_of(changed)});
  }
  TimedTogether timed = play_on_all(links, machines, options.threads);
  step.seconds = seconds_of(timed.lengths_ps[0]) + besides_s(machine);
  size_t next = 1;
  for (const auto& [number, changed] : all) {
    const size_t as = number == MachineNumber::kStepUs ? 0 : next++;
    const double better_s = seconds_of(timed.lengths_ps[as]) + besides_s(changed);
    const double shorter = 1 - better_s / step.seconds;
    if (shorter > 0) step.sensitivities.push_back({number, shorter});
  }
  std::ranges::sort(step.sensitivities, {}, &Sensitivity::number);
  std::ranges::stable_sort(step.sensitivities, std::greater(), &Sensitivity::shorter);
  if (options.trace != nullptr) {
    step.traced_ranks =
        write_trace(config, machine, run.played(prices, timed.first), *options.trace);
    step.is_trace_shortened = step.traced_ranks.size() < run.programs().size();
  }
  return std::move(timed.first);
}

/// The speeds that a run with servers.reweight would measure of its servers, each of one rank.
/// Empty where all are alike.
Speeds speeds_of_servers(const Config& config, int num_workers, const SimulateOptions& options) {
  if (!config.servers.reweight || options.slow_ranks.empty()) return {};
  Speeds speeds = stated_speeds(config, num_servers(config, num_workers));
  for (const auto& [rank, speed] : options.slow_ranks) {
    RankSpeed& slow = speeds.ranks.at(static_cast<size_t>(rank));
    for (int64_t* const time : {&slow.linear_ps_per_token, &slow.attention_ps_per_kload})
      *time = std::llround(static_cast<double>(*time) / speed);
  }
  return speeds;
}

/// SimulatedStep::plain_packing_s.
double plain_packing_s(const Config& config, const Batch& batch, int num_workers,
                       const Machine& machine, const SimulateOptions& options) {
  if (config.plan.scheduler == "local" || run_grid(config, num_workers).is_pipeline() ||
      config.servers.dedicated > 0)
    return 0;
  Config plain = config;
  plain.plan = {};  // nothing of it is for a scheduler that balances nothing
  plain.plan.scheduler = "local";
  plain.plan.profile = config.plan.profile;
  plain.servers.capacity.clear();
  plain.servers.reweight = false;
  return simulate_step(plain, batch, num_workers, machine,
                       {.sensitivities = false,
                        .plain_packing = false,
                        .slow_ranks = options.slow_ranks,
                        .threads = options.threads})
      .seconds;
}

}  // namespace

const SimulatedStage& SimulatedStep::fullest() const {
  return *std::ranges::max_element(stages, {},
                                   [](const auto& stage) { return stage.peak.total(); });
}

SimulatedStep simulate_step(const Config& config, const Batch& batch, int num_workers,
                            const Machine& machine, const SimulateOptions& options) {
  const auto plan = options.is_first_step ? plan_nano_batches : plan_later_batch;
  const BatchPlans plans =
      plan(config, batch, num_workers, speeds_of_servers(config, num_workers, options),
           /*trains=*/true, options.threads);
  SimulatedStep step;
  const std::vector<RankSample> work =
      add_plan_figures(config, batch, plans, num_workers, &step.figures);
  step.is_ruled_out =
      least_busiest_s(config, num_workers, machine, step.figures, work) > options.most_s;
  if (step.is_ruled_out) return step;
  const Run run(config, plans, num_workers, options.threads);
  step.one_of_each_server = run.plays_one_of_each_server();
  step.stages = run.stages({});
  const double memory = machine.of(MachineNumber::kMemoryGib) * 0x1p30;
  if (!options.plays_beyond_memory && step.fullest().peak.total() > memory) return step;
  const TimedStep played = play(config, run, machine, options, step);
  const std::vector<StepParts> parts = run.parts_of(played, machine, options.threads);
  step.stages = run.stages(parts);
  if (options.memory_over_time) run.add_memory(config, played, step.stages);
  const auto ranks = static_cast<double>(parts.size());
  double most_linear = 0, attention = 0;
  for (const StepParts& of_rank : parts) {
    step.busy_s += of_rank.computed() / ranks;
    attention += of_rank.attention / ranks;
    most_linear = std::max(most_linear, of_rank.linear);
  }
  step.even_attention_s = most_linear + attention;
  if (options.plain_packing)
    step.plain_packing_s = plain_packing_s(config, batch, num_workers, machine, options);
  step.tokens_per_s = static_cast<double>(step.figures.tokens) / step.seconds;
  step.share_of_peak = config.model.train_flops(step.figures.tokens, step.figures.pairs) /
                       (step.seconds * num_ranks(config, num_workers) *
                        machine.of(MachineNumber::kPeakTflops) * 1e12);
  return step;
}

}  // namespace distca
