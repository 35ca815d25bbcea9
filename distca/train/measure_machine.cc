#include "distca/train/measure_machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/machine.h"
#include "distca/base/statistics.h"
#include "distca/comm/collectives.h"
#include "distca/comm/device_facts.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/op_prices.h"
#include "distca/forecast/simulate_run.h"
#include "distca/train/bandwidth.h"
#include "distca/train/compute_peak.h"
#include "distca/train/timed_steps.h"

namespace distca {
namespace {

constexpr int kLeastRounds = 4, kMostRounds = 12;
/// Parts of batch.nano_batch_tokens.
constexpr std::array<int64_t, 3> kPartsOfTokens = {4, 2, 1};
constexpr const char* kMeasuring = "measurement of the machine";
constexpr const char* kInSteps = "measured in steps of the run";

/// Figures of all ranks for steps of one size: [rank].
using RankFigures = std::vector<Json>;

/// Adds a point to each phase of these steps: the mean over the ranks that have it.
void add_points(const RankFigures& ranks, std::map<std::string, PhaseTimes>& all) {
  std::map<std::string, TimedSteps::Sum> sums;
  for (const Json& rank : ranks) {
    for (const auto& [name, figures] : rank["phases"].items()) {
      TimedSteps::Sum& sum = sums[name];
      sum.seconds += figures["s"].get<double>();
      sum.flops += figures["flops"].get<double>();
      sum.ops += figures["ops"].get<int64_t>();
      sum.tokens += figures["tokens"].get<int64_t>();
    }
  }
  for (const auto& [name, sum] : sums) {
    if (sum.tokens == 0) continue;
    const auto [entry, is_new] = all.try_emplace(name);
    PhaseTimes& times = entry->second;
    if (is_new) {
      const bool is_backward = name.ends_with(kBackwardMark);
      const size_t mark = is_backward ? std::string(kBackwardMark).size() : 0;
      times = {.phase = name.substr(0, name.size() - mark),
               .pass = is_backward ? Pass::kBackward : Pass::kForward,
               .flops_per_token = std::llround(sum.flops / static_cast<double>(sum.tokens))};
    }
    const int64_t tokens = sum.tokens / sum.ops;
    if (!times.tokens.empty() && tokens <= times.tokens.back()) continue;
    times.tokens.push_back(tokens);
    times.ns.push_back(
        std::max<int64_t>(1, std::llround(1e9 * sum.seconds / static_cast<double>(sum.ops))));
  }
}

/// The sum of a figure over all steps and ranks.
double sum_of(const std::vector<RankFigures>& steps, const std::string& figure) {
  double sum = 0;
  for (const Json& rank : std::views::join(steps)) sum += rank["sums"].value(figure, 0.);
  return sum;
}

/// Seconds of the thread for a communication and for a byte that it sends: the least squares over
/// all steps and ranks, in which neither is below 0.
std::pair<double, double> issue_prices(const std::vector<RankFigures>& steps) {
  double nn = 0, nb = 0, bb = 0, ns = 0, bs = 0;  // sums of products
  for (const Json& rank : std::views::join(steps)) {
    const double n = rank["sums"].value("issue", 0.);
    const double b = 1e9 * rank["sums"].value("issue_gb", 0.);
    const double s = rank["sums"].value("issue_s", 0.);
    nn += n * n;
    nb += n * b;
    bb += b * b;
    ns += n * s;
    bs += b * s;
  }
  const double determinant = nn * bb - nb * nb;
  if (nn == 0) return {0, 0};
  if (determinant <= 1e-9 * nn * bb) return {ns / nn, 0};
  const double of_issue = (ns * bb - bs * nb) / determinant;
  const double of_byte = (nn * bs - nb * ns) / determinant;
  if (of_issue < 0) return {0, bs / bb};
  return of_byte < 0 ? std::pair(ns / nn, 0.) : std::pair(of_issue, of_byte);
}

/// The measured rate, else a number that nothing depends on.
Machine::Number rate(double amount, double seconds, double otherwise, const char* source) {
  if (amount > 0 && seconds > 0) return {amount / seconds, source};
  return {otherwise, "assumed: this run had nothing of it to measure"};
}

/// The phases that were measured for two token counts or more, and their mean rate.
void set_phases(const std::vector<RankFigures>& steps, Machine& machine) {
  std::map<std::string, PhaseTimes> phases;
  for (const RankFigures& ranks : steps) add_points(ranks, phases);
  double flops = 0, seconds = 0;
  for (const auto& [name, times] : phases) {
    if (times.tokens.size() < 2) continue;
    machine.phases.push_back(times);
    flops += static_cast<double>(times.flops_per_token) * static_cast<double>(times.tokens.back());
    seconds += 1e-9 * static_cast<double>(times.ns.back());
  }
  machine.at(MachineNumber::kLinearTflops) = rate(1e-12 * flops, seconds, 1, kInSteps);
  machine.at(MachineNumber::kPhaseRate) = {1, "measured: by its definition"};
}

void set_operations(const std::vector<RankFigures>& steps, Machine& machine) {
  const auto sum = [&](const char* figure) { return sum_of(steps, figure); };
  machine.at(MachineNumber::kAttentionRate) =
      rate(sum("attention"), sum("attention_s"), 1, "measured in steps, against the profile");
  machine.at(MachineNumber::kAttentionCallUs) = {0, "measured: the profile's times are of calls"};
  machine.at(MachineNumber::kMemoryGbPerS) = rate(sum("memory"), sum("memory_s"), 10, kInSteps);
  machine.at(MachineNumber::kCopyGbPerS) = rate(sum("copy"), sum("copy_s"), 10, kInSteps);
  const auto [issue_s, byte_s] = issue_prices(steps);
  machine.at(MachineNumber::kIssueUs) = {1e6 * issue_s, kInSteps};
  machine.at(MachineNumber::kIssueGbPerS) = {byte_s > 0 ? 1e-9 / byte_s : 0, kInSteps};
  std::vector<double> besides_s;  // by the rank that the others wait for
  for (const RankFigures& ranks : steps) {
    besides_s.push_back(std::numeric_limits<double>::infinity());
    for (const Json& rank : ranks)
      besides_s.back() = std::min(besides_s.back(), rank["sums"].value("besides_s", 0.));
  }
  machine.at(MachineNumber::kStepUs) = {1e6 * median(besides_s), kInSteps};
}

void set_wire(const MeasuredWire& wire, Machine& machine) {
  constexpr const char* kNeighbours = "measured between neighbours";
  const Machine::Number rate = {1e-9 * std::max(1e6, wire.bytes_per_s), kNeighbours};
  const Machine::Number latency = {1e6 * wire.latency_s, kNeighbours};
  machine.at(MachineNumber::kInsideGbPerS) = machine.at(MachineNumber::kBetweenGbPerS) = rate;
  machine.at(MachineNumber::kInsideLatencyUs) = latency;
  machine.at(MachineNumber::kBetweenLatencyUs) = latency;
  machine.at(MachineNumber::kBurstKib) = {wire.burst_bytes / 1024, kNeighbours};
  machine.at(MachineNumber::kCoreGbPerS) = {
      1e-9 * wire.core_bytes_per_s, "measured: other threads' time while neighbours exchange"};
}

/// The longest step of the ranks that these figures are of.
double longest_step(const RankFigures& ranks) {
  double longest = 0;
  for (const Json& rank : ranks) longest = std::max(longest, rank["sums"]["step_s"].get<double>());
  return longest;
}

double predicted_step(const Config& config, int num_workers, const Machine& machine,
                      double* busy_s = nullptr) {
  const SimulatedStep step = simulate_step(config, uneven_batch(config), num_workers, machine,
                                           {.sensitivities = false, .plain_packing = false});
  if (busy_s) *busy_s += step.busy_s;
  return step.seconds;
}

/// Ranks are slow by turns, and wherever they meet all wait for the slowest. So steps take longer
/// than by the mean times of operations. Here operations take that, too.
void set_waits_for_slow_ranks(const std::vector<std::unique_ptr<TimedSteps>>& all,
                              const std::vector<RankFigures>& figures, int num_workers,
                              Machine& machine) {
  double longer_s = 0, busy_s = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    longer_s +=
        longest_step(figures[i]) - predicted_step(all[i]->config(), num_workers, machine, &busy_s);
  }
  if (longer_s <= 0 || busy_s <= 0) return;
  const double rate = 1 / (1 + longer_s / busy_s);
  Machine::Number& attention = machine.at(MachineNumber::kAttentionRate);
  attention = {attention.value * rate, attention.source + ", with waits for slow ranks"};
  machine.at(MachineNumber::kPhaseRate) = {rate, "measured: waits for slow ranks, in steps"};
}

/// The numbers that say what there is, and not how fast it is.
void set_facts(const Config& config, const Communicator& comm, const ComputePeak& peak,
               Machine& machine) {
  const int64_t of_node =
      config.cluster.ranks_per_node > 0 ? config.cluster.ranks_per_node : comm.size();
  const double memory_gib = (config.on_cuda() ? static_cast<double>(visible_devices().at(0).bytes)
                                              : static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                                                    static_cast<double>(sysconf(_SC_PAGE_SIZE)) /
                                                    static_cast<double>(of_node)) /
                            0x1p30;
  machine.at(MachineNumber::kPeakTflops) = {1e-12 * peak.flops_per_s / comm.size(),
                                            "measured " + peak.of};
  machine.at(MachineNumber::kRanksPerNode) = {static_cast<double>(of_node),
                                              "stated: cluster.ranks_per_node"};
  machine.at(MachineNumber::kInOrder) = {comm.ends_in_order() ? 1. : 0., "stated: the backend"};
  machine.at(MachineNumber::kMemoryGib) = {memory_gib, "stated: the machine's, over its ranks"};
}

/// [rank] The figures of these steps; on rank 0 only.
RankFigures gathered(const TimedSteps& steps, Communicator& comm) {
  RankFigures ranks;
  for (const std::string& text : gather_texts(comm, steps.figures().dump(), kMeasuring))
    ranks.push_back(Json::parse(text));
  return ranks;
}

}  // namespace

Machine measure_machine(const Config& config, Communicator& comm,
                        std::shared_ptr<const AttentionProfile> profile, double seconds) {
  Config of_weights = run_in_parts(config, 1, 0);
  of_weights.model_from.clear();
  const int num_workers = comm.size() - static_cast<int>(config.servers.dedicated);
  const RunGrid run = run_grid(config, num_workers);
  const ComputePeak peak = measure_peak(config, comm);
  const MeasuredWire wire = measured_wire(comm, config.ranks_are_threads());
  std::unique_ptr<WorkerWeights> weights;
  if (comm.rank() < num_workers) weights = std::make_unique<WorkerWeights>(of_weights, comm, run);
  std::vector<int64_t> waiting = {0};
  if (run.is_pipeline() && config.parallel.outstanding_weight_gradients > 0)
    waiting.push_back(config.parallel.outstanding_weight_gradients);
  std::vector<std::unique_ptr<TimedSteps>> all;
  for (const int64_t outstanding : waiting) {
    for (const int64_t parts : kPartsOfTokens) {
      all.push_back(std::make_unique<TimedSteps>(run_in_parts(of_weights, parts, outstanding),
                                                 num_workers, weights.get(), comm, profile));
    }
  }
  // One round after another, so that a slow moment affects all sizes. The first one is not counted.
  const Stopwatch watch;
  for (int round = 0; round <= kMostRounds; ++round) {
    const double passed_s = std::ranges::max(all_gather(comm, watch.seconds(), kMeasuring));
    if (round > kLeastRounds && passed_s > seconds) break;
    for (const std::unique_ptr<TimedSteps>& steps : all) steps->play(round > 0);
  }
  TimedSteps own(config, num_workers, weights.get(), comm, profile);
  for (int round = 0; round <= kLeastRounds; ++round) own.play(round > 0);
  std::vector<RankFigures> figures;
  for (const std::unique_ptr<TimedSteps>& steps : all) figures.push_back(gathered(*steps, comm));
  const RankFigures checked = gathered(own, comm);
  if (comm.rank() != 0) return {};
  Machine machine{.name = fmt::format("{}, {} ranks", cpu_name(), comm.size()),
                  .attention = std::move(profile),
                  .settings = phase_settings(config)};
  set_phases(figures, machine);
  set_operations(figures, machine);
  set_wire(wire, machine);
  set_facts(config, comm, peak, machine);
  set_waits_for_slow_ranks(all, figures, num_workers, machine);
  machine.check.predicted_s = predicted_step(config, num_workers, machine);
  machine.check.measured_s = longest_step(checked);
  return machine;
}

}  // namespace distca
