#include "bench/training_contest.h"

#include <fmt/format.h>
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "bench/main.h"
#include "bench/rival.h"
#include "bench/step_arms.h"
#include "distca/base/error.h"
#include "distca/base/statistics.h"
#include "distca/comm/collectives.h"
#include "distca/comm/ordered_sum.h"
#include "distca/kernels/cpu/peak.h"
#include "distca/report/metrics.h"
#include "distca/train/bandwidth.h"

namespace distca::bench {
namespace {

constexpr double kPeakSeconds = 0.3;
constexpr size_t kSpeedBatches = 5;  // at least what SpeedMeter needs
constexpr double kDdpTimeout = 120;  // seconds of one wait

// Arms, in this order, then the rivals in the order of kRivals.
enum Who : size_t { kOurs, kOursAgain, kEqualDocuments, kFirstRival };
constexpr const char* kRoles[] = {"ours", "again", "control", "rival"};

class Contest {
 public:
  /// Starts the DDP rival if it is among the rivals.
  Contest(const ContestOptions& options, Communicator& comm)
      : options_(options),
        comm_(comm),
        player_(options.model, options.seed, comm),
        with_ddp_(takes_part(options, kDdp)),
        plain_(player_.add({.name = "plain",
                            .plan = {.scheduler = "local"},
                            .step = {.overlap = Overlap::kNone},
                            .profile = options.profile})) {
    const std::vector<int> cores = all_gather(comm, sched_getcpu(), "cores");
    if (with_ddp_ && comm.rank() == 0) start_ddp(cores);
  }

  void check_rival(const BatchLengths& batch);
  void measure_peak();
  void measure_speeds(const std::vector<BatchLengths>& batches);
  void run(const BatchSource& source);

 private:
  void start_ddp(const std::vector<int>& cores);
  /// On all ranks: rank 0 drives it, the others wait for its figures.
  StepFigures run_ddp(const BatchLengths& batch) {
    StepFigures figures;
    if (ddp_) {
      const FixedPacking packing = fixed_packing(options_.model, batch, comm_.size());
      figures = figures_of(ddp_step(*ddp_, packing, options_.model.vocab_size));
    }
    return all_gather(comm_, figures, "figures of DDP")[0];
  }

  void write(const char* line, Json values) {
    if (comm_.rank() == 0) write_line(line, std::move(values));
  }

  size_t choose(size_t arm, const BatchSource& source, const BatchLengths& equal);

  const ContestOptions& options_;
  Communicator& comm_;
  StepPlayer player_;
  const bool with_ddp_;
  std::optional<Rival> ddp_;  // on rank 0
  const size_t plain_;        // fixed packing, no overlap: for the check and the speeds
  std::vector<Contestant> arms_;
  std::vector<std::vector<size_t>> ways_;  // [arm][way] in `player_`
};

/// Starts a process a rank, pinned to cores[rank], all with the weights that ours begin with.
void Contest::start_ddp(const std::vector<int>& cores) {
  // Both ranks are on this machine: as ours, they talk over the loopback interface.
  setenv("GLOO_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  ddp_.emplace(kDdp, options_.python, kDdpTimeout);
  const std::filesystem::path folder = ddp_->save(player_.llama());
  for (size_t rank = 0; rank < cores.size(); ++rank) {
    ddp_->start({{"rank", rank},
                 {"size", cores.size()},
                 {"core", cores[rank]},
                 {"store", folder / "store"},
                 {"timeout", kDdpTimeout},
                 {"folder", folder}},
                {});
  }
}

/// Before all else: both still have the weights they began with.
void Contest::check_rival(const BatchLengths& batch) {
  if (!with_ddp_) return;
  const BatchLengths pieces = fixed_packing(options_.model, batch, comm_.size()).pieces;
  const StepFigures rival = run_ddp(batch);
  const StepFigures ours = player_.run(plain_, pieces);
  const auto targets = static_cast<double>(num_targets(pieces));
  const double bound = same_step_bound(num_tokens(pieces));
  const double loss = ours.loss / targets, rival_loss = rival.loss / targets;
  const auto same = [&](double a, double b) { return std::fabs(a - b) <= bound * a; };
  DISTCA_CHECK(same(loss, rival_loss) && same(ours.gradient_norm, rival.gradient_norm),
               "the DDP rival computes something else: loss {:.9f} against {:.9f}, gradient norm "
               "{:.9f} against {:.9f}, bound {:.1e}",
               rival_loss, loss, rival.gradient_norm, ours.gradient_norm, bound);
  write("rival_check", {{"loss", loss},
                        {"rival_loss", rival_loss},
                        {"gradient_norm", ours.gradient_norm},
                        {"rival_gradient_norm", rival.gradient_norm},
                        {"bound", bound}});
}

/// Multiply-adds of all ranks at once.
void Contest::measure_peak() {
  barrier(comm_, "peak");
  double gflops[1] = {
      kernels::measured_peak_gflops(kernels::chosen_isa(), options_.model.dtype, kPeakSeconds)};
  ordered_sum(comm_, gflops, "peak");
  write("peak", {{"gflops", gflops[0]}});
}

/// Measures speeds in a few steps of fixed packing: our tolerance is weighed with them.
void Contest::measure_speeds(const std::vector<BatchLengths>& batches) {
  SpeedMeter meter(comm_.size(), measured_bytes_per_us(comm_));
  for (size_t step = 0; step < kSpeedBatches; ++step) {
    const PlayedStep mine = player_.play(plain_, batches[step % batches.size()]);
    meter.add(static_cast<int64_t>(step), all_gather(comm_, mine.sample, "speeds"));
  }
  DISTCA_CHECK(!meter.speeds().ranks.empty(), "{} steps gave no speeds", kSpeedBatches);
  write("speeds", speeds_json(meter.speeds()));
  arms_ = contestants(options_, meter.speeds());
  for (const Contestant& arm : arms_) {
    std::vector<size_t>& indices = ways_.emplace_back();
    for (const StepArm& way : arm.ways) indices.push_back(player_.add(way));
  }
}

/// The fastest way of an arm, from rounds of their own.
size_t Contest::choose(size_t arm, const BatchSource& source, const BatchLengths& equal) {
  std::vector<ArmRun> runs;
  for (const size_t way : ways_[arm]) {
    runs.push_back([&, way](int round) {
      return player_.run(way, arms_[arm].equal_documents ? equal : source.batches[round + 1]);
    });
  }
  std::vector<Rates> seconds;
  for (const auto& rounds : interleaved_steps(runs, kChoiceRounds)) {
    const std::string& way = arms_[arm].ways[seconds.size()].name;
    seconds.push_back(seconds_of(rounds));
    write("tried", {{"arm", arms_[arm].name}, {"way", way}, {"seconds", seconds.back()}});
  }
  return fastest(seconds);
}

void Contest::run(const BatchSource& source) {
  DISTCA_CHECK_EQ(source.batches.size(), static_cast<size_t>(num_batches(options_.rounds)));
  const BatchLengths equal = typical_equal_documents(options_.shape, source);
  write("source", {{"name", source.name},
                   {"what", source.what},
                   {"equal_tokens", equal[0][0]},
                   {"batches", source.batches}});
  const auto batch_of = [&](int round) -> const BatchLengths& {
    return source.batches[kChoiceRounds + 1 + round + 1];
  };
  std::vector<ArmRun> runs;
  // [arm] The documents of a round, as the arm takes them.
  std::vector<std::function<BatchLengths(int)>> documents;
  const auto write_arm = [&](const std::string& name, const std::string& way) {
    const size_t who = std::min<size_t>(runs.size(), kFirstRival);
    write("arm", {{"arm", name}, {"way", way}, {"role", kRoles[who]}});
  };
  std::vector<size_t> chosen;
  for (size_t arm = 0; arm < arms_.size(); ++arm) {
    const bool again = arm == kOursAgain;
    chosen.push_back(again ? chosen[kOurs] : choose(arm, source, equal));
    const size_t from = again ? kOurs : arm;
    write_arm(arms_[arm].name, arms_[from].ways[chosen[arm]].name);
    documents.push_back([&, equal_documents = arms_[arm].equal_documents](int round) {
      return equal_documents ? equal : batch_of(round);
    });
    runs.push_back([&, way = ways_[from][chosen[arm]], of = documents.back()](int round) {
      return player_.run(way, of(round));
    });
  }
  if (with_ddp_) {
    write_arm("PyTorch DDP", "no_sync, sdpa a document");
    documents.push_back([&](int round) {
      return fixed_packing(options_.model, batch_of(round), comm_.size()).pieces;
    });
    runs.push_back([&](int round) { return run_ddp(batch_of(round)); });
  }
  const auto figures = interleaved_steps(runs, options_.rounds);
  for (int round = 0; round < options_.rounds; ++round) {
    Json arms = Json::array();
    for (size_t arm = 0; arm < runs.size(); ++arm) {
      const StepFigures& step = figures[arm][round];
      const BatchLengths batch = documents[arm](round);
      Json figure = {{"seconds", step.seconds},
                     {"idle_share", step.idle_share},
                     {"core_idle_share", step.core_idle_share},
                     {"flops", options_.model.train_flops(num_tokens(batch), num_pairs(batch))}};
      arms.push_back(std::move(figure));
    }
    write("round", {{"arms", arms}});
  }
}

}  // namespace

void run_contest(const ContestOptions& options, std::span<const BatchSource> sources,
                 Communicator& comm) {
  Contest contest(options, comm);
  contest.check_rival(sources[0].batches[0]);
  contest.measure_peak();
  contest.measure_speeds(sources[0].batches);
  for (const BatchSource& source : sources) contest.run(source);
}

}  // namespace distca::bench
