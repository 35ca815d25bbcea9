#include "bench/pipeline_real.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>

#include "bench/main.h"
#include "bench/stage_player.h"
#include "distca/base/error.h"
#include "distca/base/heap.h"
#include "distca/base/statistics.h"
#include "distca/comm/collectives.h"
#include "distca/train/bandwidth.h"

namespace distca::bench {
namespace {

constexpr int kStages = 2, kMicroBatches = 4, kLayers = 4;  // layers of a stage
constexpr int64_t kTolerancePpm = 2'000;  // between processes of one machine, bytes are cheap

/// The work of a step. The MLP's width decides how much of it is core attention.
struct RealSetting {
  const char* name;
  int64_t intermediate_size;
  int64_t tokens;        // tokens of a nano-batch
  double median_tokens;  // median length of a document
  bool judged;
};
constexpr std::array kSettings{RealSetting{"attention over 0.40", 512, 8192, 3072, true},
                               RealSetting{"attention near 0.25", 1152, 4096, 768, false}};

LlamaConfig model_of(const RealSetting& setting) {
  return {.vocab_size = 256,
          .hidden_size = 128,
          .intermediate_size = setting.intermediate_size,
          .num_hidden_layers = kLayers * kStages,
          .num_attention_heads = 2,
          .num_key_value_heads = 1,
          .head_dim = 64};
}

/// The ways to play a batch, which are compared.
enum Way : size_t {
  kOurs,
  kAgain,
  kWaits1,
  kWaits2,
  kPaper,
  kPairs,
  kSingles,
  kEvenPacked,
  kDataParallel,
  kWays
};
constexpr std::array<const char*, kWays> kWayNames{
    "aligned, whole even",       "aligned, whole even, again",     "aligned, 1 outstanding",
    "aligned, 2 outstanding",    "aligned, attention even",        "1F1B, pairs",
    "1F1B, single nano-batches", "1F1B, documents packed by work", "data parallel, balanced"};
constexpr std::array kJudged{kOurs, kAgain, kWaits1, kWaits2, kPairs, kSingles};

PipelineArm arm_of(Way way) {
  constexpr std::array kArms{PipelineArm::kWholeEven,     PipelineArm::kWholeEven,
                             PipelineArm::kWaits1,        PipelineArm::kWaits2,
                             PipelineArm::kAttentionEven, PipelineArm::kHomePairs,
                             PipelineArm::kHomeSingles,   PipelineArm::kHomeSingles};
  return kArms[way];
}

/// Medians over some steps and means over the ranks, rounded: the same on all of them.
struct MeasuredSpeeds {
  RankSpeed speed;
  std::array<double, 2> linear_ns{}, attention_ns{};  // [pass] of a token, of a thousand pairs
  std::array<EmbeddingHeadTime, kStages> ends{};
  int64_t bytes_per_us = 0;  // that a rank sends while nothing is computed
};

/// The documents of a batch in as many nano-batches of even work: the longest first, each where
/// least is.
BatchLengths packed_by_work(const BatchLengths& batch, const RankSpeed& speed) {
  std::vector<int64_t> documents;
  for (const std::vector<int64_t>& nano : batch)
    documents.insert(documents.end(), nano.begin(), nano.end());
  std::ranges::sort(documents, std::greater());
  BatchLengths packed(batch.size());
  std::vector<double> work(batch.size());
  for (const int64_t length : documents) {
    const auto least = std::ranges::min_element(work) - work.begin();
    const auto tokens = static_cast<double>(length);
    packed[least].push_back(length);
    work[least] += tokens * static_cast<double>(speed.linear_ps_per_token) +
                   tokens * (tokens + 1) / 2e3 * static_cast<double>(speed.attention_ps_per_kload);
  }
  return packed;
}

/// One step, of all ranks.
struct RealStep {
  StepFigures figures;
  double exchange_processor_s = 0, copied_s = 0;  // means over the ranks
  double computed_s = 0, attention_s = 0;
};

class RealMeasurer {
 public:
  RealMeasurer(const RealOptions& options, const RealSetting& setting, Communicator& comm)
      : options_(options),
        setting_(setting),
        comm_(comm),
        model_(model_of(setting)),
        stage_(RankModel::of_stage(model_, comm)),
        whole_(RankModel::whole(model_, comm)) {
    for (size_t way = 0; way < kWays; ++way)
      steps_.push_back(way == kDataParallel ? whole_->make_step() : stage_->make_step());
    for (int batch = 0; batch < options.batches; ++batch) {
      batches_.push_back(uneven_lengths(2 * kMicroBatches, setting.tokens, setting.median_tokens,
                                        static_cast<uint64_t>(batch + 1)));
    }
  }

  void measure();

 private:
  BatchLengths lengths_of(Way way, const BatchLengths& batch) const {
    return way == kPairs        ? paired(batch)
           : way == kEvenPacked ? packed_by_work(batch, speeds_.speed)
                                : batch;
  }
  PipelineParts parts_of(Way way, const BatchLengths& batch) const {
    return PipelineParts(
        step_request(arm_of(way), {.grid = {.stages = kStages},
                                   .layers = model_.num_hidden_layers / kStages,
                                   .lengths = lengths_of(way, batch),
                                   .shape = model_.shape().attention,
                                   .speed = speeds_.speed,
                                   .ends = {speeds_.ends.begin(), speeds_.ends.end()},
                                   .bytes_per_us = speeds_.bytes_per_us,
                                   .tolerance_ppm = kTolerancePpm}));
  }
  StepInput input_of(Way way, const BatchLengths& batch) const {
    if (way == kDataParallel) {
      return data_parallel_input(batch, model_, comm_.rank(), comm_.size(), whole_->gradients());
    }
    return stage_input(parts_of(way, batch), model_, comm_.rank(), stage_->gradients());
  }
  StageStep play(Way way, const StepInput& input, const BatchLengths& batch) {
    return (way == kDataParallel ? whole_ : stage_)->play(*steps_[way], input, num_targets(batch));
  }
  RealStep run(Way way, size_t batch);
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
  std::unique_ptr<RankModel> stage_, whole_;
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
  for (size_t stage = 0; stage < kStages; ++stage)
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
      inputs.push_back(input_of(static_cast<Way>(way), batch));
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
      ends_s += 1e-12 * tokens / kStages *
                static_cast<double>(end.forward_ps_per_token + end.backward_ps_per_token);
    }
    const TickSums ticks = tick_sums(parts_of(kOurs, batch));
    write("plan", {{"linear_s", linear_s},
                   {"attention_s", attention_s},
                   {"ends_s", ends_s},
                   {"attention_share", attention_s / (linear_s + attention_s + ends_s)},
                   {"planned_s", ticks.planned_s},
                   {"least_s", ticks.least_s},
                   {"over_least", ticks.over_least}});
  }
}

RealStep RealMeasurer::run(Way way, size_t batch) {
  const StageStep mine = play(way, inputs_[batch][way], batches_[batch]);
  return {.figures = figures_of(all_gather(comm_, mine.played, "figures of a step")),
          .exchange_processor_s = mean_of_ranks(mine.exchange_processor_s),
          .copied_s = mean_of_ranks(mine.copied_s),
          .computed_s = mean_of_ranks(mine.computed_s),
          .attention_s = mean_of_ranks(mine.attention_s)};
}

/// And sees that all ways compute the same step, but for those in which documents have other
/// tokens.
void RealMeasurer::warm_up() {
  const double bound = same_step_bound(num_tokens(batches_[0]));
  double loss = 0;
  for (const Way way :
       {kOurs, kAgain, kWaits1, kWaits2, kPaper, kSingles, kDataParallel, kPairs, kEvenPacked}) {
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
                    {"stages", kStages},
                    {"micro_batches", kMicroBatches},
                    {"tokens", setting_.tokens}});
  write_plans();
  warm_up();
  const int rounds = setting_.judged ? options_.rounds : options_.shown_rounds;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Way> ways(kJudged.begin(), kJudged.end());
    if (round < options_.shown_rounds)
      ways.insert(ways.end(), {kPaper, kEvenPacked, kDataParallel});
    std::ranges::rotate(ways, ways.begin() + round % static_cast<int>(ways.size()));
    const size_t batch = static_cast<size_t>(round) % batches_.size();
    Json line = {{"batch", batch}, {"arms", Json::object()}};
    for (const Way way : ways) {
      const RealStep step = run(way, batch);
      line["arms"][kWayNames[way]] = {{"s", step.figures.seconds},
                                      {"idle_share", step.figures.idle_share},
                                      {"core_idle_share", step.figures.core_idle_share},
                                      {"computed_s", step.computed_s},
                                      {"attention_s", step.attention_s},
                                      {"copied_s", step.copied_s},
                                      {"exchange_processor_s", step.exchange_processor_s}};
    }
    write("round", std::move(line));
  }
}

}  // namespace

void measure_real(const RealOptions& options, Communicator& comm) {
  keep_freed_memory();  // `distca train` does so in a pipeline, too
  bool any = false;
  for (const RealSetting& setting : kSettings) {
    if (std::string(setting.name).find(options.only) == std::string::npos) continue;
    any = true;
    if (comm.rank() == 0) fmt::print(stderr, "{}\n", setting.name);
    RealMeasurer(options, setting, comm).measure();
  }
  if (!any) throw Error(ErrorKind::kUsage, "--only '{}' selects no setting", options.only);
}

}  // namespace distca::bench
