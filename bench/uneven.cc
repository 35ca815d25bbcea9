// Two workers of which one runs at half speed, for a control group lets it compute half of the
// time:
//   bench/report.py build/release/bench/uneven
// In turns within each round: the even split of core attention, fixed splits, the split that
// measured speeds give (servers.reweight), and the even split undisturbed. Every rank is a process,
// pinned to a core of its own.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/cgroup_quota.h"
#include "bench/main.h"
#include "bench/step_arms.h"
#include "bench/step_figures.h"
#include "bench/worker_ranks.h"
#include "distca/comm/collectives.h"
#include "distca/forecast/plan_request.h"
#include "distca/report/metrics.h"

namespace distca::bench {
namespace {

constexpr int kWorkers = 2;
constexpr int kSlow = 1;  // rank

struct Arguments {
  std::string overlap = "ping-pong";
  int rounds = 15;
  int warm_up = 10;  // steps from which speeds are measured before the rounds
};

/// Core attention is about two thirds of the work, so that it can make up for a slow worker's
/// linear part. Both nano-batches alike, so that one split serves both.
Config config_of(const Arguments& arguments) {
  Config config;
  config.model.vocab_size = 256;
  config.model.hidden_size = 128;
  config.model.intermediate_size = 128;
  config.model.num_hidden_layers = 4;
  config.model.num_attention_heads = 4;
  config.model.num_key_value_heads = 2;
  config.model.head_dim = 64;
  config.batch.nano_batches = 2;
  config.batch.nano_batch_tokens = 4096;
  config.servers.reweight = true;
  config.train.deterministic = false;  // measured speeds enter plans
  config.train.overlap = overlap_of(arguments.overlap);
  return config;
}
const BatchLengths kBatch = {{3700, 396}, {3700, 396}};

/// The figures that all ranks get of one rank's step.
struct Told {
  PlayedStep played;
  double taken_s = 0;  // time of its core that the quota withheld
};

enum Arm : size_t { kEven, kEvenAgain, kReweighted, kReweightedAgain, kUndisturbed };
constexpr int kLeastPercent = 55, kMostPercent = 85, kPercentStep = 5;

class Uneven {
 public:
  Uneven(const Arguments& arguments, Communicator& comm)
      : arguments_(arguments),
        config_(config_of(arguments)),
        comm_(comm),
        player_(config_.model, 1, comm),
        meter_(kWorkers, 0),
        undisturbed_meter_(kWorkers, 0) {
    if (comm.rank() == kSlow) quota_.emplace();
    for (const char* name : {"even", "even again", "re-weighted", "re-weighted again"}) add(name);
    add("even, undisturbed");
    for (int percent = kLeastPercent; percent <= kMostPercent; percent += kPercentStep)
      add(fmt::format("fixed {}:{}", percent, 100 - percent), {percent, 100 - percent});
  }

  void measure() {
    for (int i = 0; i < arguments_.warm_up; ++i) {
      play(kReweighted);
      play(kUndisturbed);
    }
    for (int round = -1; round < arguments_.rounds; ++round) {
      Json line = Json::object();
      for (size_t turn = 0; turn < names_.size(); ++turn) {
        const size_t arm = (turn + static_cast<size_t>(round + 1)) % names_.size();
        line[names_[arm]] = play(arm);
      }
      if (round >= 0 && comm_.rank() == 0) write_line("round", {{"splits", line}});
    }
    if (comm_.rank() == 0) write_speeds();
  }

 private:
  void add(std::string name, std::vector<int64_t> capacity = {}) {
    StepArm arm{.name = name};
    arm.plan.tolerance_ppm = 10'000;
    arm.step.overlap = overlap_of(arguments_.overlap);
    arm.capacity = std::move(capacity);
    player_.add(arm);
    names_.push_back(std::move(name));
  }

  /// The workers' capacities as training with servers.reweight chooses them.
  std::vector<int64_t> capacities(const Speeds& speeds) const {
    return plan_request(config_, NanoBatch::from_lengths(kBatch[0]), kWorkers, speeds)
        .cluster.capacity;
  }

  /// A step of one split, in figures.
  Json play(size_t arm) {
    if (quota_) quota_->run(arm != kUndisturbed);
    const double taken_before = quota_ ? quota_->taken_seconds() : 0;
    Told told;
    told.played = player_.play(arm, kBatch);
    if (quota_) told.taken_s = quota_->taken_seconds() - taken_before;
    const std::vector<Told> all = all_gather(comm_, told, "what ranks tell");
    std::vector<RankSample> samples;
    for (const Told& rank : all) samples.push_back(rank.played.sample);
    if (arm == kUndisturbed) undisturbed_meter_.add(num_steps_++, samples);
    if (arm == kReweighted || arm == kReweightedAgain) reweight(samples);
    return played_round(all);
  }

  void reweight(const std::vector<RankSample>& samples) {
    meter_.add(num_steps_++, samples);
    if (meter_.speeds().ranks.empty()) return;
    for (const size_t arm : {kReweighted, kReweightedAgain})
      player_.arm(arm).capacity = capacities(meter_.speeds());
  }

  static Json played_round(const std::vector<Told>& told) {
    std::vector<PlayedStep> played;
    int64_t load = 0;
    for (const Told& rank : told) {
      played.push_back(rank.played);
      load += rank.played.sample.load;
    }
    const Told &fast = told[1 - kSlow], &slow = told[kSlow];
    const double seconds = figures_of(played).seconds;
    const double computed_s = std::max(slow.played.computed_s, fast.played.computed_s);
    // For exchanges, and for the other's gradients.
    const auto waits = [&](const PlayedStep& rank) {
      return (rank.waited_s + computed_s - rank.computed_s) / seconds;
    };
    return {
        {"seconds", seconds},
        {"fast_share", static_cast<double>(fast.played.sample.load) / static_cast<double>(load)},
        {"fast_waits", waits(fast.played)},
        {"slow_waits", waits(slow.played)},
        {"taken_share", slow.taken_s / seconds}};
  }

  /// The fast worker's share of the capacities that even_capacities makes of these speeds.
  double predicted_share(const Speeds& speeds) const {
    const std::vector<int64_t> capacity = capacities(speeds);
    return static_cast<double>(capacity[1 - kSlow]) /
           static_cast<double>(capacity[kSlow] + capacity[1 - kSlow]);
  }

  void write_speeds() const {
    Speeds halved = undisturbed_meter_.speeds();
    if (!halved.ranks.empty()) {
      halved.ranks[kSlow].linear_ps_per_token *= 2;
      halved.ranks[kSlow].attention_ps_per_kload *= 2;
    }
    write_line("speeds", {{"undisturbed", speeds_json(undisturbed_meter_.speeds())},
                          {"re-weighted", speeds_json(meter_.speeds())},
                          {"share_by_half_speed", predicted_share(halved)}});
  }

  Arguments arguments_;
  Config config_;
  Communicator& comm_;
  StepPlayer player_;
  std::optional<CgroupQuota> quota_;  // on the slow rank
  SpeedMeter meter_, undisturbed_meter_;
  int64_t num_steps_ = 0;
  std::vector<std::string> names_;  // [Arm], then the fixed ones
};

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Two workers, one at half speed: fixed splits of core attention and measured ones.",
               "uneven"};
  app.option_defaults()->always_capture_default();
  app.add_option("--overlap", arguments.overlap)->check(CLI::IsMember(overlap_names()));
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 10000));
  app.add_option("--warm-up", arguments.warm_up, "Steps that only measure speeds")
      ->check(CLI::Range(4, 1000));
  app.footer(
      "Alone on the machine.\n"
      "Example:  bench/report.py build/release/bench/uneven --throttle cgroup");
  if (!parse_options(app, argc, argv)) return 0;
  return run_worker_ranks(
      {.program = "bench/uneven", .ranks = kWorkers}, std::span(argv, static_cast<size_t>(argc)),
      [&](Communicator& comm) {
        if (comm.rank() == 0)
          write_header("uneven", {{"rounds", arguments.rounds}, {"overlap", arguments.overlap}});
        Uneven(arguments, comm).measure();
      });
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/uneven",
                                      [&] { return distca::bench::run(argc, argv); });
}
