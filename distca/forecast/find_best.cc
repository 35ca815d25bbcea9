#include "distca/forecast/find_best.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/parallel.h"
#include "distca/base/text.h"
#include "distca/forecast/setting_bounds.h"

namespace distca {
namespace {

constexpr double kAnyLength = std::numeric_limits<double>::infinity();
/// Settings that are tried before the best ones are looked at again.
constexpr size_t kTriedTogether = 8;

/// Threads of each setting that is tried: the last ones of those that are tried together would
/// leave some idle.
int threads_of_each() {
  const int here = threads_here();
  return std::max(std::min(here, 2), here / static_cast<int>(kTriedTogether));
}

PlayedSetting played_setting(const BestRequest& request, const Config& config,
                             const Setting& setting, const SimulatedStep& step) {
  PlayedSetting played{step, setting};
  played.recomputed_s =
      recomputed_s(config, request.gpus, request.machine, batch_work(config, request.batch));
  for (const SimulatedStage& stage : step.stages) {  // each has as many ranks
    for (const auto& [_, part] : kStepParts)
      played.mean.*part += stage.mean.*part / static_cast<double>(step.stages.size());
  }
  return played;
}

void keep_nearest(std::optional<TooLarge>& nearest, const std::optional<TooLarge>& other) {
  if (other && (!nearest || other->bytes.total() < nearest->bytes.total())) nearest = other;
}

/// Refuses keys that would make settings other than they say, or of which the search knows nothing.
void check_is_free(const BestRequest& request) {
  const Config& config = request.config;
  const auto refuse = [](bool given, const char* key, const char* why) {
    DISTCA_THROW_IF(given, ErrorKind::kConfig, "{} with --find-best: {}; leave it out", key, why);
  };
  refuse(config.servers.dedicated > 0, "servers.dedicated", "every GPU holds weights");
  refuse(!config.servers.capacity.empty(), "servers.capacity", "servers are alike");
  refuse(config.servers.reweight, "servers.reweight", "servers are alike");
  refuse(!config.parallel.pipeline_layers.empty(), "parallel.pipeline_layers",
         "stages have even work");
  refuse(!config.plan.layout.empty(), "plan.layout", "each scheduler has its own");
  refuse(config.plan.tolerance.is_auto, "plan.tolerance=auto", "pipelines cannot have it");
  refuse(!config.parallel.sequence_parallel, "parallel.sequence_parallel=false",
         "ranks that divide layers cannot have it");
  const auto of_node = static_cast<int64_t>(request.machine.of(MachineNumber::kRanksPerNode));
  refuse(config.cluster.ranks_per_node > 0 && config.cluster.ranks_per_node != of_node,
         "cluster.ranks_per_node", "the machine says how many a node has");
}

/// The settings of one contestant, and what becomes of them.
class BestSearch {
 public:
  BestSearch(const BestRequest& request, const Contestant& contestant, const BestProgress& progress)
      : request_(request), progress_(progress), wanted_(contestant.is_ours() ? request.wanted : 1) {
    found_.contestant = contestant;
    const int of_node =
        std::min(kMostRanks, static_cast<int>(request.machine.of(MachineNumber::kRanksPerNode)));
    const SettingSpace space{.gpus = request.gpus,
                             .ranks_per_node = of_node,
                             .most_nano_batches = std::ssize(request.batch),
                             .bandwidth_mb_per_s = network_mb_per_s(request.machine, request.gpus)};
    const BatchWork work = batch_work(request.config, request.batch);
    for (const Setting& setting : settings_of(contestant, request.config, space)) {
      const Config config = config_of(request.config, setting);
      candidates_.push_back({.setting = setting,
                             .least_s = least_step_s(config, request.gpus, request.machine, work)});
    }
    std::ranges::stable_sort(candidates_, {}, &Candidate::least_s);
    found_.settings = std::ssize(candidates_);
  }

  Found run() {
    try_from(0);
    if (found_.contestant.is_ours()) {
      try_variants(with_tolerances);
      try_variants(with_spread);
      try_other_divisions();
    }
    for (const Candidate& candidate : candidates_) found_.ruled_out += candidate.has_ended ? 0 : 1;
    return std::move(found_);
  }

 private:
  struct Candidate {
    Setting setting;
    double least_s = 0;
    bool has_ended = false;
  };

  double longest_wanted() const {
    return found_.best.size() < wanted_ ? kAnyLength : found_.best.back().seconds;
  }

  /// Tries candidates from this one on, up to the first whose bound is above what is looked for.
  void try_from(size_t begin) {
    for (size_t end = begin; begin < candidates_.size(); begin = end) {
      while (end < candidates_.size() && end < begin + kTriedTogether &&
             candidates_[end].least_s <= longest_wanted())
        ++end;
      if (begin == end) return;
      try_together(begin, end);
    }
  }

  void try_together(size_t begin, size_t end) {
    std::vector<Tried> tried(end - begin);
    const double most_s = longest_wanted();
    for_each_in_parallel(tried.size(), threads_here(), [&](size_t i) {
      tried[i] = try_setting(request_, candidates_[begin + i].setting, most_s);
      report(candidates_.size() - end);
    });
    for (size_t i = 0; i < tried.size(); ++i) take(candidates_[begin + i], tried[i]);
  }

  /// The best settings once more, planned otherwise.
  void try_variants(std::vector<Setting> (*variants_of)(const Config&, const Setting&)) {
    const size_t begin = candidates_.size();
    for (const PlayedSetting& played : found_.best) {
      for (const Setting& variant : variants_of(request_.config, played.setting))
        candidates_.push_back({.setting = variant});
    }
    found_.settings = std::ssize(candidates_);
    try_from(begin);
  }

  void report(size_t left) {
    if (!progress_) return;
    const std::lock_guard lock(mutex_);
    progress_(found_.contestant, ++tried_, static_cast<int64_t>(left));
  }

  /// One setting of each division that could not be among the best is predicted all the same, to
  /// say what it loses.
  void try_other_divisions() {
    std::vector<std::vector<size_t>> open;  // [division] candidates
    for (size_t i = 0; i < candidates_.size(); ++i) {
      Division& division = division_of(candidates_[i].setting);
      open.resize(found_.divisions.size());
      if (!division.best && !candidates_[i].has_ended)
        open[static_cast<size_t>(&division - found_.divisions.data())].push_back(i);
    }
    std::vector<std::vector<Tried>> tried(open.size());
    for_each_in_parallel(open.size(), threads_here(), [&](size_t division) {
      for (const size_t candidate : open[division]) {
        tried[division].push_back(try_setting(request_, candidates_[candidate].setting));
        report(0);
        if (tried[division].back().played) break;
      }
    });
    for (size_t division = 0; division < open.size(); ++division) {
      for (size_t i = 0; i < tried[division].size(); ++i)
        take(candidates_[open[division][i]], tried[division][i]);
    }
    std::ranges::sort(found_.divisions, {},
                      [](const Division& of) { return std::pair(of.tensor, of.stages); });
  }

  Division& division_of(const Setting& setting) {
    const auto is_alike = [&](const Division& of) {
      return of.tensor == setting.tensor && of.stages == setting.stages;
    };
    const auto place = std::ranges::find_if(found_.divisions, is_alike);
    if (place != found_.divisions.end()) return *place;
    return found_.divisions.emplace_back(
        Division{.tensor = setting.tensor, .stages = setting.stages, .replicas = setting.replicas});
  }

  void take(Candidate& candidate, const Tried& tried) {
    if (!tried.played && !tried.too_large && tried.refused.empty()) return;
    candidate.has_ended = true;
    if (!tried.refused.empty()) {
      ++found_.refused;
      if (found_.refusal.empty()) found_.refusal = tried.refused;
      return;
    }
    std::optional<Division> unused;
    Division& division =
        found_.contestant.is_ours() ? division_of(candidate.setting) : unused.emplace();
    if (tried.too_large) {
      ++found_.too_large;
      keep_nearest(found_.nearest, tried.too_large);
      keep_nearest(division.nearest, tried.too_large);
      return;
    }
    ++found_.played;
    if (!division.best || tried.played->seconds < division.best->seconds)
      division.best = tried.played;
    const auto place =
        std::ranges::upper_bound(found_.best, tried.played->seconds, {}, &PlayedSetting::seconds);
    found_.best.insert(place, *tried.played);
    if (found_.best.size() > wanted_) found_.best.pop_back();
  }

  const BestRequest& request_;
  const BestProgress& progress_;
  const size_t wanted_;
  std::vector<Candidate> candidates_;
  Found found_;
  std::mutex mutex_;
  int64_t tried_ = 0;
};

std::string nearest_text(const TooLarge& nearest) {
  const MemoryParts& bytes = nearest.bytes;
  const MemoryPart most = bytes.largest();
  return fmt::format("{} with {} nano-batches needs {:.1f} GiB, of which {} are {:.1f}",
                     division_text(nearest.setting), nearest.setting.nano_batches,
                     bytes.total() / 0x1p30, memory_part_name(most), bytes.of(most) / 0x1p30);
}

}  // namespace

Batch joined(const Batch& batch, int64_t nano_batches) {
  DISTCA_CHECK(nano_batches > 0 && std::ssize(batch) % nano_batches == 0, "{} of {} nano-batches",
               nano_batches, batch.size());
  const size_t together = batch.size() / static_cast<size_t>(nano_batches);
  Batch result;
  for (size_t first = 0; first < batch.size(); first += together) {
    std::vector<int64_t> lengths;
    NanoBatchSource& one = result.emplace_back();
    for (size_t i = first; i < first + together; ++i) {
      for (const Document& document : batch[i].nano_batch.documents)
        lengths.push_back(document.length);
      one.sources.insert(one.sources.end(), batch[i].sources.begin(), batch[i].sources.end());
    }
    one.nano_batch = NanoBatch::from_lengths(lengths);
  }
  return result;
}

Tried try_setting(const BestRequest& request, const Setting& setting, double most_s) {
  const BatchWork work = batch_work(request.config, request.batch);
  Tried tried;
  for (const Setting& relieved : reliefs_of(setting)) {
    const Config config = config_of(request.config, relieved);
    const MemoryParts least = least_peak(config, request.gpus);
    if (tried.refused.empty()) tried.too_large = TooLarge{relieved, least};
    if (least.total() > request.machine.of(MachineNumber::kMemoryGib) * 0x1p30) continue;
    if (least_step_s(config, request.gpus, request.machine, work) > most_s) return {};
    try {
      const SimulatedStep step = simulate_step(config, joined(request.batch, relieved.nano_batches),
                                               request.gpus, request.machine,
                                               {.sensitivities = false,
                                                .plain_packing = false,
                                                .plays_beyond_memory = false,
                                                .most_s = most_s,
                                                .is_first_step = request.is_first_step,
                                                .threads = threads_of_each()});
      if (step.is_ruled_out) return {};
      if (step.seconds > 0) return {.played = played_setting(request, config, relieved, step)};
      if (tried.refused.empty()) tried.too_large = TooLarge{relieved, step.fullest().peak};
    } catch (const Error& error) {
      tried = {.refused = error.what()};
      if (error.kind() != ErrorKind::kPlan) return tried;  // else a cap, which less memory may meet
    }
  }
  return tried;
}

std::vector<Found> find_best(const BestRequest& request, const BestProgress& progress) {
  check_is_free(request);
  DISTCA_THROW_IF(!request.machine.phases.empty(), ErrorKind::kConfig,
                  "--find-best with machine {}: its phases were measured for one number of ranks "
                  "that divide layers and hold for no other; take a machine without such phases",
                  request.machine.name);
  DISTCA_CHECK_EQ(std::ssize(request.batch), most_nano_batches(request.config.batch));
  std::vector<Found> all;
  for (const Contestant& contestant : request.contestants) {
    all.push_back(BestSearch(request, contestant, progress).run());
    const Found& found = all.back();
    if (!found.contestant.is_ours() || !found.best.empty()) continue;
    DISTCA_THROW_IF(found.nearest, ErrorKind::kConfig,
                    "no setting of {} fits the {:g} GiB of {}: {}", counted(request.gpus, "GPU"),
                    request.machine.of(MachineNumber::kMemoryGib), request.machine.name,
                    nearest_text(*found.nearest));
    DISTCA_THROW_IF(!found.refusal.empty(), ErrorKind::kConfig,
                    "no setting of {} can be planned: {}", counted(request.gpus, "GPU"),
                    found.refusal);
    throw Error(ErrorKind::kConfig, "{} cannot be divided for this model",
                counted(request.gpus, "GPU"));
  }
  return all;
}

}  // namespace distca
