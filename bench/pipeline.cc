// Pipelines of two stages that share core attention: steps of a small Llama, one core a stage,
// compared with 1F1B on the same documents:
//   bench/report.py build/release/bench/pipeline
// Lines: of each setting "speeds", "setting", a "plan" for each batch, then one a round.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/main.h"
#include "bench/real_settings.h"
#include "bench/stage_player.h"
#include "bench/worker_ranks.h"
#include "distca/base/error.h"
#include "distca/base/heap.h"
#include "distca/base/statistics.h"
#include "distca/comm/collectives.h"
#include "distca/train/bandwidth.h"

namespace distca::bench {
namespace {

struct RealOptions {
  int rounds = 15;
  int shown_rounds = 5;  // rounds of the setting that is not judged
  int batches = 3;       // rounds take them in turn
  std::string only;      // settings whose names hold this
};

constexpr std::array kJudged{kOurs, kAgain, kWaits1, kWaits2, kPairs, kSingles};

/// One step, of all ranks.
struct RealStep {
  StepFigures figures;
  double exchange_processor_s = 0, computed_s = 0, attention_s = 0;  // means over the ranks
};

class RealMeasurer {
 public:
  RealMeasurer(const RealOptions& options, const RealSetting& setting, Communicator& comm)
      : options_(options),
        setting_(setting),
        comm_(comm),
        model_(real_model(setting)),
        stage_(model_, comm) {
    for (size_t way = 0; way < kWays; ++way) steps_.push_back(stage_.make_step());
    for (int batch = 0; batch < options.batches; ++batch)
      batches_.push_back(real_batch(setting, batch));
  }

  void measure();

 private:
  PipelineParts parts_of(RealWay way, const BatchLengths& batch) const {
    return real_parts(way, model_, batch, speeds_);
  }
  StepInput input_of(RealWay way, const BatchLengths& batch) const {
    return stage_input(parts_of(way, batch), model_, comm_.rank(), stage_.gradients());
  }
  StageStep play(RealWay way, const StepInput& input, const BatchLengths& batch) {
    return stage_.play(*steps_[way], input, num_targets(batch));
  }
  RealStep run(RealWay way, size_t batch);
  void measure_speeds();
  void plan_all();
  void write_plans() const;
  void warm_up();
  void write(const char* line, Json values) const {
    if (comm_.rank() == 0) write_line(line, std::move(values));
  }
  double mean_of_ranks(double mine) const {
    double sum = 0;
    for (const double one : all_gather(comm_, mine, "a mean")) sum += one;
    return sum / comm_.size();
  }

  const RealOptions& options_;
  const RealSetting& setting_;
  Communicator& comm_;
  const LlamaConfig model_;
  StageModel stage_;
  std::vector<std::unique_ptr<Step>> steps_;  // [way]
  std::vector<BatchLengths> batches_;
  MeasuredSpeeds speeds_;
  std::vector<std::vector<StepInput>> inputs_;  // [batch][way]
};

/// Measures steps of 1F1B, in which only p2p messages run at the same time as an operation.
void RealMeasurer::measure_speeds() {
  constexpr int kSteps = 5;
  const BatchLengths& batch = batches_[0];
  const StepInput input = input_of(kSingles, batch);
  const auto tokens = static_cast<double>(num_tokens(batch));
  const double kpairs = static_cast<double>(num_pairs(batch)) / 1e3;
  std::array<std::vector<double>, 2> linear, attention, ends;
  play(kSingles, input, batch);  // warms up
  for (int i = 0; i < kSteps; ++i) {
    const OpTimes times = play(kSingles, input, batch).times;
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const auto of = [&](OpKind kind) { return times.of(kind, pass, OpPart::kPlay); };
      const auto at = static_cast<size_t>(pass);
      linear[at].push_back((of(OpKind::kPreAttention) + of(OpKind::kPostAttention)) / tokens);
      attention[at].push_back(of(OpKind::kCoreAttention) / kpairs);
      ends[at].push_back((of(OpKind::kEmbed) + of(OpKind::kLoss)) / tokens);
    }
  }
  std::array<int64_t, 2> ends_ps{};
  for (const size_t pass : {0, 1}) {
    speeds_.linear_ns[pass] = 1e9 * mean_of_ranks(median(linear[pass]));
    speeds_.attention_ns[pass] = 1e9 * mean_of_ranks(median(attention[pass]));
    ends_ps[pass] = std::llround(1e12 * median(ends[pass]));
  }
  const auto ps = [](const std::array<double, 2>& ns) {
    return std::llround(1e3 * (ns[0] + ns[1]));
  };
  speeds_.speed = {.linear_ps_per_token = ps(speeds_.linear_ns),
                   .attention_ps_per_kload = ps(speeds_.attention_ns)};
  const auto all = all_gather(comm_, ends_ps, "times of the ends");
  for (size_t stage = 0; stage < kRealStages; ++stage)
    speeds_.ends[stage] = {.forward_ps_per_token = all[stage][0],
                           .backward_ps_per_token = all[stage][1]};
  Json ends_json = Json::array();
  for (const EmbeddingHeadTime& end : speeds_.ends)
    ends_json.push_back({end.forward_ps_per_token, end.backward_ps_per_token});
  speeds_.bytes_per_us = measured_bytes_per_us(comm_);
  write("speeds", {{"bytes_per_us", speeds_.bytes_per_us},
                   {"linear_ns", speeds_.linear_ns},
                   {"attention_ns", speeds_.attention_ns},
                   {"ends_ps", ends_json}});
}

void RealMeasurer::plan_all() {
  for (const BatchLengths& batch : batches_) {
    std::vector<StepInput>& inputs = inputs_.emplace_back();
    for (size_t way = 0; way < kWays; ++way)
      inputs.push_back(input_of(static_cast<RealWay>(way), batch));
  }
}

/// Predicted by the measured speeds.
void RealMeasurer::write_plans() const {
  for (const BatchLengths& batch : batches_) {
    const auto tokens = static_cast<double>(num_tokens(batch));
    const double linear_s = 1e-12 * tokens * static_cast<double>(speeds_.speed.linear_ps_per_token);
    const double attention_s = 1e-15 * static_cast<double>(num_pairs(batch)) *
                               static_cast<double>(speeds_.speed.attention_ps_per_kload);
    double ends_s = 0;
    for (const EmbeddingHeadTime& end : speeds_.ends) {
      ends_s += 1e-12 * tokens / kRealStages *
                static_cast<double>(end.forward_ps_per_token + end.backward_ps_per_token);
    }
    write("plan", {{"linear_s", linear_s},
                   {"attention_s", attention_s},
                   {"ends_s", ends_s},
                   {"attention_share", attention_s / (linear_s + attention_s + ends_s)},
                   {"least_s", tick_sums(parts_of(kOurs, batch)).least_s}});
  }
}

RealStep RealMeasurer::run(RealWay way, size_t batch) {
  const StageStep mine = play(way, inputs_[batch][way], batches_[batch]);
  return {.figures = figures_of(all_gather(comm_, mine.played, "figures of a step")),
          .exchange_processor_s = mean_of_ranks(mine.exchange_processor_s),
          .computed_s = mean_of_ranks(mine.computed_s),
          .attention_s = mean_of_ranks(mine.attention_s)};
}

/// And sees that all ways compute the same step, but for those in which documents have other
/// tokens.
void RealMeasurer::warm_up() {
  const double bound = same_step_bound(num_tokens(batches_[0]));
  double loss = 0;
  for (const RealWay way :
       {kOurs, kAgain, kWaits1, kWaits2, kPaper, kSingles, kPairs, kEvenPacked}) {
    const StepFigures step = run(way, 0).figures;
    if (way == kOurs) loss = step.loss;
    const bool is_same_step = way != kPairs && way != kEvenPacked;
    DISTCA_CHECK(!is_same_step || std::fabs(step.loss - loss) <= bound * loss,
                 "{} computes something else: loss {:.9f}, ours {:.9f}, bound {:.1e}",
                 kWayNames[way], step.loss, loss, bound);
  }
}

void RealMeasurer::measure() {
  measure_speeds();
  plan_all();
  write("setting", {{"name", setting_.name},
                    {"judged", setting_.judged},
                    {"model", model_.to_hugging_face(0)},
                    {"stages", kRealStages},
                    {"micro_batches", kRealMicroBatches},
                    {"tokens", setting_.tokens}});
  write_plans();
  warm_up();
  const int rounds = setting_.judged ? options_.rounds : options_.shown_rounds;
  for (int round = 0; round < rounds; ++round) {
    std::vector<RealWay> ways(kJudged.begin(), kJudged.end());
    if (round < options_.shown_rounds) ways.insert(ways.end(), {kPaper, kEvenPacked});
    std::ranges::rotate(ways, ways.begin() + round % static_cast<int>(ways.size()));
    const size_t batch = static_cast<size_t>(round) % batches_.size();
    Json line = {{"batch", batch}, {"arms", Json::object()}};
    for (const RealWay way : ways) {
      const RealStep step = run(way, batch);
      line["arms"][kWayNames[way]] = {{"s", step.figures.seconds},
                                      {"idle_share", step.figures.idle_share},
                                      {"core_idle_share", step.figures.core_idle_share},
                                      {"computed_s", step.computed_s},
                                      {"attention_s", step.attention_s},
                                      {"exchange_processor_s", step.exchange_processor_s}};
    }
    write("round", std::move(line));
  }
}

/// Measures speeds, plans with them and plays all arms in turns.
void measure_real(const RealOptions& options, Communicator& comm) {
  keep_freed_memory();  // `distca train` does so, too
  bool any = false;
  for (const RealSetting& setting : kRealSettings) {
    if (std::string(setting.name).find(options.only) == std::string::npos) continue;
    any = true;
    if (comm.rank() == 0) fmt::print(stderr, "{}\n", setting.name);
    RealMeasurer(options, setting, comm).measure();
  }
  if (!any) throw Error(ErrorKind::kUsage, "--only '{}' selects no setting", options.only);
}

int run(int argc, char** argv) {
  RealOptions options;
  CLI::App app{"Pipelines whose stages share core attention, beside others.", "pipeline"};
  app.option_defaults()->always_capture_default();
  app.add_option("--rounds", options.rounds, "Of the setting that is judged")
      ->check(CLI::Range(1, 1000));
  app.add_option("--shown-rounds", options.shown_rounds, "Of what is not judged")
      ->check(CLI::Range(1, 1000));
  app.add_option("--only", options.only, "The settings whose names hold it");
  app.footer("Example:  bench/report.py build/release/bench/pipeline --only \"attention over\"");
  if (!parse_options(app, argc, argv)) return 0;
  const WorkerRanks workers{
      .program = "bench/pipeline", .ranks = kRealStages, .comm = {.timeout_s = 3600, .grace_s = 1}};
  return run_worker_ranks(
      workers, std::span(argv, static_cast<size_t>(argc)), [&](Communicator& comm) {
        if (comm.rank() == 0) {
          write_header("pipeline",
                       {{"rounds", options.rounds}, {"shown_rounds", options.shown_rounds}});
        }
        measure_real(options, comm);
      });
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/pipeline",
                                      [&] { return distca::bench::run(argc, argv); });
}
