#include "distca/forecast/paper_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <span>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/parallel.h"
#include "distca/cost/stage_layers.h"
#include "distca/forecast/find_best.h"
#include "distca/forecast/simulate_run.h"

namespace distca {
namespace {

constexpr const char* kOriginal = "greedy-original";
constexpr const char* kAllGather = "all-gather";
constexpr const char* kOurs = "balanced";
constexpr double kFreeGbPerS = 1e6;  // the most that a machine may have
constexpr std::array kAlone = {1};   // no pipeline

/// The machine with the paper's ways to send. Collectives of tensor parallelism are a part of
/// linear work: 4 in each layer and pass, by their bytes; this program's own messages inside a node
/// then take no time. The paper's runtime has such collectives between its phases in every step,
/// where this program's ping-pong hides them, which would be a gain over WLB-ideal that is not the
/// planner's. Attention's messages do not queue with others.
Machine paper_machine(Machine machine, const Config& config) {
  const double flops = 6 * static_cast<double>(layer_products(config.rank_shape()));
  const double bytes =
      8 * static_cast<double>(config.model.hidden_size) * 2 * (kPaperTensor - 1) / kPaperTensor;
  double& rate = machine.at(MachineNumber::kLinearTflops).value;
  const double seconds =
      flops / (rate * 1e12) + bytes / (machine.of(MachineNumber::kInsideGbPerS) * 1e9);
  rate = 1e-12 * flops / seconds;
  machine.at(MachineNumber::kInsideGbPerS).value = kFreeGbPerS;
  machine.at(MachineNumber::kInsideLatencyUs).value = 0;
  machine.at(MachineNumber::kInOrder).value = 0;
  machine.at(MachineNumber::kRanksPerNode).value = kPaperTensor;
  return machine;
}

/// The configuration of what the setting's scheduler is compared with.
Config config_for(const PaperRow& row, const Machine& machine, const std::string& scheduler) {
  Config config = paper_config(row);
  if (scheduler == kOriginal) {
    config.plan.tolerance.share = paper_tolerance(row);
    config.servers.capacity.assign(static_cast<size_t>(row.gpus / kPaperTensor), 1);
    return config;
  }
  if (scheduler == kAllGather) config.plan.layout = "given-groups";
  config.attention_profile = machine.attention;
  config.plan.profile = "h200";
  return config;
}

Setting setting_of(const PaperRow& row, const std::string& scheduler, int stages,
                   int64_t nano_batches) {
  using Keys = Config::Exchange::Keys;
  Setting setting{.scheduler = scheduler,
                  .tensor = kPaperTensor,
                  .stages = stages,
                  .replicas = row.gpus / kPaperTensor / stages,
                  .ranks_per_node = kPaperTensor,
                  .nano_batches = nano_batches,
                  .nano_batch_tokens = row.tokens() / nano_batches,
                  .overlap = Overlap::kPingPong};
  setting.keys = stages > 1               ? Keys::kAuto
                 : scheduler == kOriginal ? Keys::kRedispatch
                                          : Keys::kKeep;
  if (scheduler == kAllGather) {
    setting.overlap = Overlap::kNone;
    setting.schedule = PipelineSchedule::kAtHome;
  }
  return setting;
}

/// The most nano-batches that any setting of the row has.
int64_t finest(const PaperRow& row) {
  return row.table == PaperTable::kThreeDimensions ? 2 : std::min(kPaperNanoBatches, row.sequences);
}

std::vector<PaperChoice> choices_of(const PaperRow& row, const std::string& scheduler,
                                    std::span<const int> stages, const Machine& machine) {
  const bool is_wlb = scheduler == kAllGather;
  const bool has_orders = scheduler == kOurs;
  std::vector<int64_t> nano_batches = {finest(row)};
  if (row.table == PaperTable::kFourDimensions) {
    nano_batches.insert(nano_batches.end(), {finest(row) / 2, finest(row) / 4});
  } else if (is_wlb) {
    nano_batches.push_back(1);
  }
  std::vector<PaperChoice> choices;
  for (const int of : stages) {
    for (const int64_t count : nano_batches) {
      if (count < (is_wlb ? 1 : 2) * of) continue;
      PaperChoice choice{.setting = setting_of(row, scheduler, of, count)};
      if (has_orders && of > 1)
        choice.setting.bandwidth_mb_per_s = network_mb_per_s(machine, row.gpus);
      if (!is_wlb) choices.push_back(choice);
      if (has_orders && of > 1) {
        choice.setting.outstanding = 2;
        choices.push_back(choice);
        if (row.table == PaperTable::kBeyond) {
          choice.setting.schedule = PipelineSchedule::kMixed;
          choices.push_back(choice);
        }
      }
      for (const int group : kPaperGroups) {
        if (!is_wlb || choice.setting.replicas % group != 0) continue;
        choice.group = group;
        for (const double most : kPaperMostTokens) {
          choice.most_over_mean = most;
          choices.push_back(choice);
        }
      }
    }
  }
  return choices;
}

/// Documents packed over so many workers of `most` tokens (0: the mean), as WLB-LLM packs them.
Layout wlb_buckets(const NanoBatch& all, int64_t buckets, int64_t most) {
  PlanRequest request{.nano_batch = all,
                      .cluster = Cluster::in_place(static_cast<int>(buckets)),
                      .options = {.scheduler = "wlb"}};
  request.cluster.max_tokens_per_worker = most;
  return make_layout(request);
}

/// The step as WLB-ideal has it: its documents packed over all micro-batches and groups of nodes.
/// A micro-batch has groups of like work, and groups have likewise in all micro-batches together.
/// Micro-batches without a document are left out.
Batch packed_step(const Batch& step, const PaperChoice& choice) {
  NanoBatch all = joined(step, 1)[0].nano_batch;
  const int64_t groups = choice.setting.replicas / choice.group;
  const int64_t buckets = groups * choice.setting.nano_batches;
  const double mean = static_cast<double>(all.num_tokens()) / static_cast<double>(buckets);
  Layout packed;
  try {
    packed = wlb_buckets(all, buckets, std::llround(std::ceil(choice.most_over_mean * mean)));
  } catch (const Error&) {  // some document is longer
    packed = wlb_buckets(all, buckets, 0);
  }
  std::vector<std::pair<int64_t, std::vector<int64_t>>> works;  // pairs, lengths
  for (const std::vector<Segment>& bucket : packed.workers) {
    auto& [pairs, lengths] = works.emplace_back();
    for (const Segment& document : bucket) {
      lengths.push_back(document.tokens.size());
      pairs += lengths.back() * lengths.back();
    }
  }
  std::ranges::stable_sort(works, [](const auto& a, const auto& b) { return a.first > b.first; });
  Batch batch;
  for (auto first = works.begin(); first != works.end(); first += groups) {
    if (first->first == 0) break;  // fewer documents than groups
    if (batch.size() % 2 == 1) std::reverse(first, first + groups);
    std::vector<int64_t> lengths;
    for (auto bucket = first; bucket != first + groups; ++bucket) {
      if (bucket != first) lengths.push_back(0);  // the next group begins
      lengths.insert(lengths.end(), bucket->second.begin(), bucket->second.end());
    }
    batch.push_back({.nano_batch = NanoBatch::from_lengths(lengths)});
  }
  return batch;
}

/// Plays the ways to train of one row.
class RowContest {
 public:
  RowContest(const PaperRow& row, const PaperStudy& study)
      : row_(row), study_(study), machine_(paper_machine(study.machine, paper_config(row))) {
    const int64_t nano_batches = finest(row);
    const std::vector<NanoBatch> sampled = sample_workloads(
        study.lengths.at(row.data), {.kind = row.data,
                                     .count = study.batches * static_cast<int>(nano_batches),
                                     .ranks = 1,
                                     .tokens_per_rank = row.tokens() / nano_batches,
                                     .max_document_tokens = row.max_document_tokens});
    for (size_t i = 0; i < sampled.size(); ++i) {
      if (i % static_cast<size_t>(nano_batches) == 0) steps_.emplace_back();
      steps_.back().push_back({.nano_batch = sampled[i]});
    }
  }

  std::optional<PaperBest> best(const std::string& scheduler, std::span<const int> stages) {
    std::map<int, double> of_stages;
    std::optional<PaperChoice> best;
    double best_s = 0;
    std::string refusal;
    const auto try_all = [&](const std::vector<PaperChoice>& choices) {
      const std::vector<Tried> tried = tried_of(scheduler, choices);
      for (size_t i = 0; i < tried.size(); ++i) {
        if (refusal.empty()) refusal = tried[i].refused;
        if (!tried[i].played) continue;
        const PlayedSetting& played = *tried[i].played;
        double& shortest =
            of_stages.try_emplace(played.setting.stages, played.seconds).first->second;
        shortest = std::min(shortest, played.seconds);
        if (best && played.seconds >= best_s) continue;
        best = choices[i];
        best->setting = played.setting;
        best_s = played.seconds;
      }
    };
    try_all(choices_of(row_, scheduler, stages, machine_));
    for (const auto variants_of : {with_tolerances, with_spread}) {
      if (!best || scheduler != kOurs) continue;
      std::vector<PaperChoice> variants;
      for (const Setting& setting :
           variants_of(config_for(row_, machine_, scheduler), best->setting))
        variants.push_back({.setting = setting});
      try_all(variants);
    }
    if (!best && !refusal.empty()) refusals_.push_back(fmt::format("{}: {}", scheduler, refusal));
    if (!best) return std::nullopt;
    PaperBest found = played(*best, machine_);
    found.of_stages = std::move(of_stages);
    return found;
  }

  /// The number that moves most one step over another, which is below the published range or above.
  PaperMove largest_move(const PaperBest& step, const PaperBest& over, bool is_below) const {
    std::map<MachineNumber, double> change;  // the logarithm of the ratio, if a fifth better
    for (const auto& [number, shorter] : shorter_by(step)) change[number] += std::log1p(-shorter);
    for (const auto& [number, shorter] : shorter_by(over)) change[number] -= std::log1p(-shorter);
    PaperMove most;
    double largest = 0;
    for (const auto& [number, more] : change) {
      if (std::abs(more) <= largest) continue;
      largest = std::abs(more);
      most = {.number = number,
              .is_better = (more > 0) == is_below,
              .ratio = step.seconds / over.seconds * std::exp(is_below ? largest : -largest)};
    }
    return most;
  }

  const Machine& machine() const { return machine_; }
  /// PaperResult::refusals
  const std::vector<std::string>& refusals() const { return refusals_; }

  PaperBest played(const PaperChoice& choice, const Machine& machine) const {
    PaperBest best{choice};
    const Config config = config_with(choice, machine);
    for (const Batch& step : steps_) {
      const SimulatedStep simulated =
          simulate_step(config, batch_of(step, choice), row_.gpus, machine,
                        {.sensitivities = false, .plain_packing = false});
      const auto count = static_cast<double>(steps_.size());
      best.seconds += simulated.seconds / count;
      best.busy_s += simulated.busy_s / count;
      best.even_attention_s += simulated.even_attention_s / count;
    }
    return best;
  }

 private:
  /// [choices] On the first batch.
  std::vector<Tried> tried_of(const std::string& scheduler,
                              const std::vector<PaperChoice>& choices) const {
    std::vector<Tried> tried(choices.size());
    size_t ended = 0;
    std::mutex mutex;
    for_each_in_parallel(choices.size(), threads_here(), [&](size_t i) {
      const Batch batch = batch_of(steps_[0], choices[i]);
      if (std::ssize(batch) == choices[i].setting.nano_batches)  // else it has too few documents
        tried[i] = try_setting({.config = config_for(row_, machine_, scheduler),
                                .batch = batch,
                                .gpus = row_.gpus,
                                .machine = machine_},
                               choices[i].setting);
      const std::lock_guard lock(mutex);
      if (study_.progress)
        study_.progress(fmt::format("{}, {}: {} of {} settings", row_.name(), scheduler, ++ended,
                                    choices.size()));
    });
    return tried;
  }

  Config config_with(const PaperChoice& choice, const Machine& machine) const {
    return config_of(config_for(row_, machine, choice.setting.scheduler), choice.setting);
  }

  /// By how much the first batch's step is shorter with each better number of the machine.
  std::vector<Sensitivity> shorter_by(const PaperBest& best) const {
    return simulate_step(config_with(best, machine_), batch_of(steps_[0], best), row_.gpus,
                         machine_, {.plain_packing = false})
        .sensitivities;
  }

  static Batch batch_of(const Batch& step, const PaperChoice& choice) {
    return choice.group > 0 ? packed_step(step, choice) : joined(step, choice.setting.nano_batches);
  }

  const PaperRow& row_;
  const PaperStudy& study_;
  const Machine machine_;
  std::vector<Batch> steps_;
  std::vector<std::string> refusals_;
};

/// -1, 0 or 1: below, in or above, rounded to hundredths as the range is.
int place_in(const PaperRange& range, double found) {
  const double rounded = std::round(100 * found) / 100;
  return rounded < range.least ? -1 : rounded > range.most ? 1 : 0;
}

}  // namespace

std::string PaperBest::words() const {
  std::string text = fmt::format("P {}, N {}", setting.stages, setting.nano_batches);
  if (group > 0) text += fmt::format(", CP {}", group);
  if (most_over_mean > 0) text += fmt::format(", to {:g}", most_over_mean);
  if (setting.schedule == PipelineSchedule::kMixed) text += ", mixed";
  if (setting.outstanding > 0) text += fmt::format(", {} left", setting.outstanding);
  if (setting.tolerance > 0) text += fmt::format(", {:g}", setting.tolerance);
  if (setting.spread) text += ", spread";
  if (setting.recompute != Recompute::kNone)
    text += fmt::format(", {}", recompute_name(setting.recompute));
  return text;
}

double PaperResult::speedup(const std::optional<PaperBest>& best) const {
  return wlb && best ? wlb->seconds / best->seconds : 0;
}

double PaperResult::best_against_best() const {
  const auto shorter = [](const std::optional<PaperBest>& a, const std::optional<PaperBest>& b) {
    if (!a || !b) return a ? a->seconds : b ? b->seconds : 0;
    return std::min(a->seconds, b->seconds);
  };
  const double other = shorter(wlb, wlb_alone), own = shorter(ours, ours_alone);
  return own > 0 ? other / own : 0;
}

std::optional<int> PaperResult::place() const {
  const double found = speedup(original);
  if (found == 0 || row.published.most == 0) return std::nullopt;
  return place_in(row.published, found);
}

int OneStreamCost::place() const { return place_in(kOneStream, longer); }

double PaperResult::speedup_of_stages(int stages) const {
  const auto seconds = [&](const std::optional<PaperBest>& best) {
    return best && best->of_stages.contains(stages) ? best->of_stages.at(stages) : 0;
  };
  return seconds(original) > 0 ? seconds(wlb) / seconds(original) : 0;
}

PaperResult play_row(const PaperRow& row, const PaperStudy& study) {
  const std::span<const int> stages = paper_stages(row.table);
  RowContest contest(row, study);
  PaperResult result{.row = row,
                     .wlb = contest.best(kAllGather, stages),
                     .original = contest.best(kOriginal, stages),
                     .ours = contest.best(kOurs, stages)};
  if (const int place = result.place().value_or(0); place != 0)
    result.move = contest.largest_move(*result.wlb, *result.original, place < 0);
  if (row.table != PaperTable::kThreeDimensions) {
    result.wlb_alone = contest.best(kAllGather, kAlone);
    result.ours_alone = contest.best(kOurs, kAlone);
  }
  result.refusals = contest.refusals();
  return result;
}

double all_gather_share(int nodes, const Machine& machine) {
  const int64_t documents = nodes * kAllGatherNodeTokens / kAllGatherDocument;
  const PaperRow row{.max_document_tokens = kAllGatherDocument,
                     .sequences = documents,
                     .gpus = nodes * kPaperTensor};
  const NanoBatch all = NanoBatch::from_lengths(
      std::vector<int64_t>(static_cast<size_t>(documents), kAllGatherDocument));
  Setting setting = setting_of(row, kAllGather, 1, 1);
  const auto seconds = [&](const char* scheduler) {
    setting.scheduler = scheduler;
    const Config config = config_of(config_for(row, machine, scheduler), setting);
    return simulate_step(config, {{.nano_batch = all}}, row.gpus, paper_machine(machine, config),
                         {.sensitivities = false, .plain_packing = false})
        .seconds;
  };
  const double gathered = seconds(kAllGather);
  return 1 - seconds("local") / gathered;
}

OneStreamCost one_stream_cost(const PaperRow& row, const PaperStudy& study) {
  RowContest contest(row, study);
  const std::optional<PaperBest> hidden = contest.best(kOriginal, kAlone);
  DISTCA_THROW_IF(!hidden, ErrorKind::kConfig, "{} does not fit the memory of {}", row.name(),
                  study.machine.name);
  PaperChoice one_stream = *hidden;
  one_stream.setting.overlap = Overlap::kNone;
  Machine free = contest.machine();
  free.at(MachineNumber::kBetweenGbPerS).value = kFreeGbPerS;
  const PaperBest exposed = contest.played(one_stream, contest.machine());
  OneStreamCost cost{.longer = exposed.seconds / hidden->seconds - 1,
                     .bytes_cost = 1 - contest.played(*hidden, free).seconds / hidden->seconds};
  if (cost.place() != 0) cost.move = contest.largest_move(exposed, *hidden, cost.place() < 0);
  return cost;
}

}  // namespace distca
