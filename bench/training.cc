// A training step of two workers under our plans and overlap modes compared with its rivals, in
// turns on the same batches:
//   bench/report.py build/release/bench/training
// Rivals: fixed packing, variable-length packing, per-document context parallelism, the paper's
// greedy, each under its best overlap mode, and PyTorch DDP, whose first step is compared with ours
// on the same documents: one that computes something else is a CHECK. Control: equal documents.

#include <fmt/format.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/rival.h"
#include "bench/step_arms.h"
#include "bench/training_ways.h"
#include "bench/worker_ranks.h"
#include "distca/base/error.h"
#include "distca/base/scalar_type.h"
#include "distca/comm/collectives.h"
#include "distca/comm/ordered_sum.h"
#include "distca/kernels/cpu/peak.h"
#include "distca/report/metrics.h"
#include "distca/train/bandwidth.h"

namespace distca::bench {
namespace {

struct Arguments {
  ContestOptions contest = small_contest();
  std::string data = "data/stdlib";
  std::string lengths = DISTCA_LENGTHS;  // in the source folder
  std::string only;
};

constexpr double kPeakSeconds = 0.3;
constexpr size_t kSpeedBatches = 5;  // at least what SpeedMeter needs

// Arms, in this order, then the rivals.
enum Who : size_t { kOurs, kOursAgain, kEqualDocuments, kFirstRival };
constexpr const char* kRoles[] = {"ours", "again", "control", "rival"};

class Contest {
 public:
  Contest(const ContestOptions& options, Communicator& comm)
      : options_(options),
        comm_(comm),
        player_(options.model, options.seed, comm),
        plain_(player_.add({.name = "plain",
                            .plan = {.scheduler = "local"},
                            .step = {.overlap = Overlap::kNone}})) {
    const std::vector<int> cores = all_gather(comm, sched_getcpu(), "cores");
    if (comm.rank() == 0) ddp_.emplace(player_.llama(), cores);
  }

  void check_rival(const BatchLengths& batch);
  void measure_peak();
  void measure_speeds(const std::vector<BatchLengths>& batches);
  void run(const BatchSource& source);

 private:
  /// On all ranks: rank 0 drives it, the others wait for its figures.
  StepFigures run_ddp(const BatchLengths& batch) {
    StepFigures figures;
    if (ddp_) {
      const FixedPacking packing = fixed_packing(options_.model, batch, comm_.size());
      figures = figures_of(ddp_->step(packing));
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
  std::optional<DdpRival> ddp_;  // on rank 0
  const size_t plain_;           // fixed packing, no overlap: for the check and the speeds
  std::vector<Contestant> arms_;
  std::vector<std::vector<size_t>> ways_;  // [arm][way] in `player_`
};

/// Before all else: both still have the weights they began with.
void Contest::check_rival(const BatchLengths& batch) {
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
  write_arm("PyTorch DDP", "no_sync, sdpa a document");
  documents.push_back([&](int round) {
    return fixed_packing(options_.model, batch_of(round), comm_.size()).pieces;
  });
  runs.push_back([&](int round) { return run_ddp(batch_of(round)); });
  const auto figures = interleaved_steps(runs, options_.rounds);
  for (int round = 0; round < options_.rounds; ++round) {
    Json arms = Json::array();
    for (size_t arm = 0; arm < runs.size(); ++arm) {
      const StepFigures& step = figures[arm][round];
      const BatchLengths batch = documents[arm](round);
      arms.push_back({{"seconds", step.seconds},
                      {"idle_share", step.idle_share},
                      {"core_idle_share", step.core_idle_share},
                      {"flops", options_.model.train_flops(num_tokens(batch), num_pairs(batch))}});
    }
    write("round", {{"arms", arms}});
  }
}

void measure(const Arguments& arguments, Communicator& comm) {
  const ContestOptions& options = arguments.contest;
  if (comm.size() != options.shape.workers) {
    throw Error(ErrorKind::kUsage, "started as one of {} ranks: {} are measured", comm.size(),
                options.shape.workers);
  }
  const int count = num_batches(options.rounds);
  std::vector<BatchSource> sources;
  if (arguments.only != "long-tailed")
    sources.push_back(real_source(arguments.data, options.shape, count, options.seed));
  if (arguments.only != "real")
    sources.push_back(long_tailed_source(arguments.lengths, options.shape, count, options.seed));
  if (comm.rank() == 0) {
    write_header("training", {{"workers", options.shape.workers},
                              {"rounds", options.rounds},
                              {"nano_batches", options.shape.nano_batches},
                              {"nano_batch_tokens", options.shape.nano_batch_tokens},
                              {"model", options.model.to_hugging_face(0)},
                              {"type", short_name(options.model.dtype)},
                              {"memory_cap", kMemoryCap}});
  }
  Contest contest(options, comm);
  contest.check_rival(sources[0].batches[0]);
  contest.measure_peak();
  contest.measure_speeds(sources[0].batches);
  for (const BatchSource& source : sources) contest.run(source);
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"A training step of two workers beside its rivals, on the same batches.",
               "training"};
  app.option_defaults()->always_capture_default();
  app.add_option("--data", arguments.data,
                 "Prefix of a prepared data set (PREFIX.idx, PREFIX.bin)");
  app.add_option("--lengths", arguments.lengths, "Folder of lengths_pretrain.json");
  app.add_option("--only", arguments.only, "One source of batches")
      ->check(CLI::IsMember({"real", "long-tailed"}));
  app.add_option("--nano-batch-tokens", arguments.contest.shape.nano_batch_tokens)
      ->check(CLI::Range(512, 1 << 20));
  app.add_option("--rounds", arguments.contest.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--seed", arguments.contest.seed, "Of batches and weights");
  app.footer("Example:  bench/report.py build/release/bench/training --only real");
  if (!parse_options(app, argc, argv)) return 0;
  // DDP's start and a source's batches are waited for.
  return run_worker_ranks({.program = "bench/training",
                           .ranks = arguments.contest.shape.workers,
                           .comm = {.timeout_s = 180}},
                          std::span(argv, static_cast<size_t>(argc)),
                          [&](Communicator& comm) { measure(arguments, comm); });
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/training",
                                      [&] { return distca::bench::run(argc, argv); });
}
