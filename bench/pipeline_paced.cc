#include "bench/pipeline_paced.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "bench/main.h"
#include "bench/paced_player.h"
#include "bench/tick_spans.h"
#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/sim/player.h"

namespace distca::bench {
namespace {

/// The compared setting, in which our arm has to be ahead.
constexpr PacedSetting kContest{.stages = 4, .micro_batches = 8, .attention_share = 0.4};

constexpr std::array kArms{
    PipelineArm::kWaits2,        PipelineArm::kHomePairs, PipelineArm::kHomeSingles,
    PipelineArm::kAttentionEven, PipelineArm::kWholeEven, PipelineArm::kWaits1,
    PipelineArm::kMixed,         PipelineArm::kMixed2,    PipelineArm::kZeroBubble};
constexpr const char* kAgain = "aligned, 2 outstanding, again";

Json plan_figures(const PacedStep& step, PipelineArm arm) {
  const std::vector<Program> programs = step.programs();
  double bytes = 0, messages = 0;
  const RatePrices prices([&](int rank, const Op& op) { return step.seconds(rank, op); });
  const double modelled_s =
      1e-12 * static_cast<double>(timed_step(programs, prices, /*wire=*/{}).length_ps);
  for (const Program& program : programs) {
    for (const Op& op : program.ops) {
      bytes += static_cast<double>(program.sends(op).bytes);
      messages += static_cast<double>(program.sends(op).messages.size());
    }
  }
  Json line = {{"arm", arm_name(arm)},
               {"busy_s", step.busy_seconds()},
               {"modelled_s", modelled_s},
               {"bytes", bytes},
               {"messages", messages}};
  if (is_at_home(arm) || is_mixed(arm)) return line;
  const TickSums ticks = tick_sums(step.parts());
  line.update({{"ticks", ticks.ticks},
               {"planned_s", ticks.planned_s},
               {"least_s", ticks.least_s},
               {"over_least", ticks.over_least}});
  return line;
}

/// Figures of a played step from those of all ranks. `asleep`: [ranks] the processor time of their
/// sleeps alone. An empty list means that it is unknown.
Json played_figures(std::span<const PacedRank> ranks, std::span<const double> asleep) {
  double begin = ranks[0].begin_s, end = 0, late = 0, processor = 0, waited = 0, exchanges = 0;
  for (const PacedRank& rank : ranks) {
    begin = std::min(begin, rank.begin_s);
    end = std::max(end, rank.end_s);
    late = std::max(late, rank.late_s);
    processor = std::max(processor, rank.processor_s);
    waited += rank.waited_s / static_cast<double>(ranks.size());
  }
  Json figures = {{"s", end - begin},
                  {"late_s", late},
                  {"waited_s", waited},
                  {"processor_share", processor / (end - begin)}};
  for (size_t rank = 0; rank < asleep.size(); ++rank)
    exchanges = std::max(exchanges, ranks[rank].processor_s - asleep[rank]);
  if (!asleep.empty()) figures["exchange_share"] = exchanges / (end - begin);
  return figures;
}

class PacedMeasurer {
 public:
  PacedMeasurer(const PacedOptions& options, const PacedSetting& setting, Communicator& comm)
      : options_(options), setting_(setting), comm_(comm), player_(comm) {
    for (const PipelineArm arm : kArms) {
      steps_.push_back(std::make_unique<PacedStep>(setting, arm));
      programs_.push_back(steps_.back()->program(comm.rank()));
    }
  }

  void measure(bool is_contest) {
    write("setting", {{"name", setting_.name()},
                      {"stages", setting_.stages},
                      {"replicas", setting_.replicas},
                      {"micro_batches", setting_.micro_batches},
                      {"attention_share", setting_.attention_share},
                      {"layers", setting_.layers},
                      {"tokens", setting_.tokens},
                      {"linear_s", setting_.linear_s},
                      {"contest", is_contest}});
    for (size_t i = 0; i < kArms.size() && comm_.rank() == 0; ++i)
      write("arm", plan_figures(*steps_[i], kArms[i]));
    // The processor time of our exchanges is what sleeping alone does not take.
    asleep_ = all_gather(comm_, player_.sleep(programs_[0], prices(0)).processor_s, "asleep");
    const int rounds = is_contest ? options_.contest_rounds : options_.rounds;
    const int shown_rounds =
        is_contest ? rounds
                   : (setting_.micro_batches > 2 * setting_.stages ? 0 : options_.shown_rounds);
    for (int round = 0; round < rounds; ++round) {
      // Our arm twice; another first each time.
      std::vector<size_t> turns = {0, kArms.size()};
      for (size_t i = 1; i < kArms.size() && round < shown_rounds; ++i) turns.push_back(i);
      std::ranges::rotate(turns, turns.begin() + round % static_cast<int>(turns.size()));
      Json arms = Json::object();
      for (const size_t turn : turns) {
        const size_t arm = turn % kArms.size();
        arms[turn == kArms.size() ? kAgain : arm_name(kArms[arm])] = played(arm);
      }
      write("round", {{"arms", arms}});
    }
  }

  /// Writes what every rank did in each tick of a step.
  void trace() {
    for (size_t arm = 0; arm < kArms.size(); ++arm) {
      TraceRecorder recorder;
      const PacedRank mine = play(arm, &recorder);
      const double begin = std::ranges::min(all_gather(comm_, mine.begin_s, "begin of a step"));
      std::string text;
      for (TickSpan span :
           tick_spans(*steps_[arm], comm_.rank(), programs_[arm], recorder.events())) {
        span.begin_s -= begin;
        span.end_s -= begin;
        Json line = json_of(span);
        line["arm"] = arm_name(kArms[arm]);
        line["rank"] = comm_.rank();
        line["line"] = "tick";
        text += line.dump() + "\n";
      }
      for (const std::string& lines : gather_texts(comm_, text, "ticks")) fmt::print("{}", lines);
    }
  }

 private:
  std::function<double(const Op&)> prices(size_t arm) const {
    return [this, arm](const Op& op) { return steps_[arm]->seconds(comm_.rank(), op); };
  }
  PacedRank play(size_t arm, TraceRecorder* recorder = nullptr) {
    return player_.play(programs_[arm], prices(arm), recorder);
  }
  Json played(size_t arm) {
    const std::vector<PacedRank> ranks = all_gather(comm_, play(arm), "figures of a step");
    return played_figures(ranks, arm == 0 ? asleep_ : std::vector<double>());
  }
  void write(const char* line, Json values) const {
    if (comm_.rank() == 0) write_line(line, std::move(values));
  }

  const PacedOptions& options_;
  const PacedSetting& setting_;
  Communicator& comm_;
  PacedPlayer player_;
  std::vector<std::unique_ptr<PacedStep>> steps_;  // [kArms]
  std::vector<Program> programs_;                  // [kArms] of this rank
  std::vector<double> asleep_;                     // [ranks] processor time without messages
};

/// Plays a small step, so that no measured one pays for connections and the allocator's first
/// pages.
void warm_up(Communicator& comm, const PacedSetting& of) {
  PacedSetting setting = of;
  setting.micro_batches = 1;
  setting.layers = 1;
  const PacedStep step(setting, PipelineArm::kWholeEven);
  PacedPlayer player(comm);
  player.play(step.program(comm.rank()),
              [&](const Op& op) { return step.seconds(comm.rank(), op); });
}

}  // namespace

std::vector<PacedRun> paced_runs(const PacedOptions& options) {
  std::vector<PacedRun> runs;
  const auto add = [&](PacedSetting setting, bool is_contest) {
    setting.linear_s = 1e-3 * options.linear_ms;
    if (setting.name().find(options.only) != std::string::npos)
      runs.push_back({setting, is_contest});
  };
  for (const int stages : {2, 4}) {
    for (const int micro_batches : {2 * stages, 4 * stages}) {
      for (const double share : {0.25, 0.4, 0.6}) {
        const PacedSetting setting{
            .stages = stages, .micro_batches = micro_batches, .attention_share = share};
        add(setting, setting.name() == kContest.name());
      }
    }
  }
  PacedSetting replicas = kContest;
  replicas.replicas = 2;
  add(replicas, false);
  add({.stages = 8, .micro_batches = 16, .attention_share = 0.4}, false);
  const auto named =
      std::ranges::find(runs, options.only, [](const PacedRun& run) { return run.setting.name(); });
  if (named != runs.end()) return {*named};
  if (runs.empty()) {
    throw Error(ErrorKind::kUsage, "--only '{}' selects no setting; there are \"{}\" and the like",
                options.only, kContest.name());
  }
  return runs;
}

int ranks_of(const std::vector<PacedRun>& runs) {
  int most = 0;
  for (const PacedRun& run : runs) most = std::max(most, run.setting.ranks());
  return most;
}

void measure_paced(const PacedOptions& options, Communicator& comm) {
  const std::vector<PacedRun> runs = paced_runs(options);
  for (size_t i = 0; i < runs.size(); ++i) {
    const PacedSetting& setting = runs[i].setting;
    if (comm.rank() < setting.ranks()) {
      const auto group = comm.split_first(setting.ranks());
      if (comm.rank() == 0) fmt::print(stderr, "[{}/{}] {}\n", i + 1, runs.size(), setting.name());
      warm_up(*group, setting);
      PacedMeasurer(options, setting, *group).measure(runs[i].is_contest);
    }
    barrier(comm, "end of a setting");
  }
}

void trace_paced(const PacedOptions& options, Communicator& comm) {
  PacedSetting setting = kContest;
  setting.linear_s = 1e-3 * options.linear_ms;
  warm_up(comm, setting);
  PacedMeasurer(options, setting, comm).trace();
}

}  // namespace distca::bench
