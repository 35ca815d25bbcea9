#include "distca/forecast/training_setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "distca/base/error.h"
#include "distca/config/run_grid.h"
#include "distca/plan/scheduler.h"

namespace distca {
namespace {

using Keys = Config::Exchange::Keys;

/// More of them are never tried: pipelines are busy by then, and each costs time to look at.
constexpr int64_t kMostNanoBatches = 64;

/// Ascending.
std::vector<int64_t> divisors_of(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) divisors.push_back(divisor);
  }
  return divisors;
}

bool is_possible(const Config& config) {
  if (config.model.windows_differ() && config.parallel.pipeline_model_parallel_size > 1)
    return false;  // a tick would pool layers of different windows
  try {
    check_tensor(config);
    check_pipeline(config);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// The orders of a setting whose ranks and nano-batches are given.
std::vector<Setting> orders_of(const Contestant& contestant, const Config& config,
                               const SettingSpace& space, Setting setting) {
  std::vector<Setting> orders;
  std::vector<Overlap> overlaps = {Overlap::kWithin};
  if (setting.nano_batches > 1) overlaps.insert(overlaps.begin(), Overlap::kPingPong);
  const auto add = [&](PipelineSchedule schedule, const std::set<int>& outstanding) {
    for (const int some : outstanding) {
      for (const Overlap overlap : overlaps) {
        Setting& order = orders.emplace_back(setting);
        order.schedule = schedule;
        order.outstanding = some;
        order.overlap = overlap;
      }
    }
  };
  if (setting.stages == 1) {
    add(setting.schedule, {0});
  } else if (contestant.is_ours()) {
    if (config.plan.bandwidth_mb_per_s == 0) setting.bandwidth_mb_per_s = space.bandwidth_mb_per_s;
    add(PipelineSchedule::kAligned, {0, 2});
    add(PipelineSchedule::kMixed, {0, 2});
  } else {
    overlaps = {Overlap::kWithin};  // such stages have one nano-batch at a time
    add(PipelineSchedule::kAtHome, setting.scheduler.starts_with("wlb-cp")
                                       ? std::set<int>{setting.stages}
                                       : std::set<int>{0, setting.stages});
    for (const int virtual_stages : kVirtualStages) {
      if (config.model.num_hidden_layers % (setting.stages * virtual_stages) != 0 ||
          setting.nano_batches % setting.stages != 0)
        continue;
      add(PipelineSchedule::kAtHome, {0});
      orders.back().virtual_stages = virtual_stages;
    }
  }
  return orders;
}

/// The numbers of tokens to which a scheduler packs. Groups that share documents are even enough.
std::vector<int64_t> packed_tokens(const Setting& setting) {
  if (setting.scheduler != "wlb") return {0};
  const double mean =
      static_cast<double>(setting.nano_batch_tokens) / static_cast<double>(setting.replicas);
  return {0, static_cast<int64_t>(std::ceil(kPackedTokens * mean))};
}

/// Setting::keys of the first of its reliefs. In a pipeline keys travel again in any case.
Keys first_keys(int64_t stages) { return stages == 1 ? Keys::kKeep : Keys::kAuto; }

/// The setting with the first of its reliefs.
Setting unrelieved(Setting setting) {
  setting.recompute = Recompute::kNone;
  setting.keys = first_keys(setting.stages);
  return setting;
}

/// True if there is nothing to even.
bool is_alone(const Setting& setting) { return setting.stages * setting.replicas == 1; }

constexpr std::array kWlbGroups = {2, 4, 8, 16};

std::string wlb_cp_name(int group) { return fmt::format("wlb-cp{}", group); }

/// The schedulers of a contestant that differ for so many replicas.
std::vector<std::string> schedulers_of(const Contestant& contestant, int replicas) {
  std::vector<std::string> schedulers = contestant.schedulers;
  for (const int group : kWlbGroups) {
    if (replicas % group != 0) std::erase(schedulers, wlb_cp_name(group));
  }
  return schedulers;
}

std::string_view keys_word(Keys keys) {
  return keys == Keys::kKeep ? "keep" : keys == Keys::kRedispatch ? "redispatch" : "auto";
}

}  // namespace

const std::vector<Contestant>& contestants() {
  std::vector<std::string> wlb = {"wlb"};
  for (const int group : kWlbGroups) wlb.push_back(wlb_cp_name(group));
  static const std::vector<Contestant> all = {{"ours", {"balanced"}},
                                              {"local", {"local"}},
                                              {"wlb", wlb},
                                              {"karmarkar-karp", {"karmarkar-karp"}},
                                              {"per-document-cp", {"per-document-cp"}}};
  return all;
}

int64_t network_mb_per_s(const Machine& machine, int gpus) {
  const bool is_one_node = gpus <= machine.of(MachineNumber::kRanksPerNode);
  return std::llround(1000 * machine.of(is_one_node ? MachineNumber::kInsideGbPerS
                                                    : MachineNumber::kBetweenGbPerS));
}

int64_t most_nano_batches(const BatchOptions& batch) {
  const int64_t tokens = batch.nano_batches * batch.nano_batch_tokens;
  const int64_t most = std::min(kMostNanoBatches, tokens / batch.max_document_tokens);
  int64_t times = std::max<int64_t>(1, most / batch.nano_batches);
  while (tokens % (times * batch.nano_batches) != 0) --times;
  return times * batch.nano_batches;
}

std::vector<Setting> settings_of(const Contestant& contestant, const Config& config,
                                 const SettingSpace& space) {
  const int64_t tokens = config.batch.nano_batches * config.batch.nano_batch_tokens;
  std::vector<Setting> settings;
  Setting one{.ranks_per_node = space.ranks_per_node};
  for (const int64_t tensor : divisors_of(std::gcd(space.gpus, space.ranks_per_node))) {
    for (const int64_t stages : divisors_of(space.gpus / tensor)) {
      one.tensor = static_cast<int>(tensor);
      one.stages = static_cast<int>(stages);
      one.replicas = space.gpus / one.tensor / one.stages;
      one.keys = first_keys(stages);
      one.scheduler = contestant.schedulers.front();
      one.nano_batches = 1;
      one.nano_batch_tokens = tokens;
      if (!is_possible(config_of(config, one))) continue;
      for (const int64_t nano_batches : divisors_of(space.most_nano_batches)) {
        if (nano_batches < stages) continue;  // some stage would always wait
        one.nano_batches = nano_batches;
        one.nano_batch_tokens = tokens / nano_batches;
        for (const std::string& scheduler : schedulers_of(contestant, one.replicas)) {
          one.scheduler = scheduler;
          for (const int64_t max_tokens : packed_tokens(one)) {
            one.max_tokens = max_tokens;
            const std::vector<Setting> orders = orders_of(contestant, config, space, one);
            settings.insert(settings.end(), orders.begin(), orders.end());
          }
        }
      }
    }
  }
  return settings;
}

std::vector<Setting> with_tolerances(const Config& config, const Setting& setting) {
  std::vector<Setting> settings;
  for (const double tolerance : kTolerances) {
    if (config.plan.tolerance.share == tolerance || is_alone(setting)) continue;
    settings.push_back(unrelieved(setting));
    settings.back().tolerance = tolerance;
  }
  return settings;
}

std::vector<Setting> with_spread(const Config& /*config*/, const Setting& setting) {
  if (setting.spread || is_alone(setting)) return {};
  Setting spread = unrelieved(setting);
  spread.spread = true;
  return {spread};
}

std::vector<Setting> reliefs_of(const Setting& setting) {
  std::vector<Setting> reliefs;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    Setting& kept = reliefs.emplace_back(setting);
    kept.recompute = recompute;
    if (recompute == Recompute::kNone || setting.stages > 1) continue;
    Setting dispatched_again = kept;
    dispatched_again.keys = Keys::kRedispatch;
    reliefs.push_back(dispatched_again);
  }
  return reliefs;
}

Config config_of(const Config& config, const Setting& setting) {
  Config changed = config;
  changed.plan.scheduler = setting.scheduler;
  changed.plan.spread = setting.spread;
  if (!find_scheduler(setting.scheduler).split_kv) {
    changed.plan.split_kv = false;
    changed.plan.fill_ticks = FillTicks::kExact;
  }
  if (setting.max_tokens > 0) changed.plan.max_tokens_per_worker = setting.max_tokens;
  if (setting.tolerance > 0) changed.plan.tolerance = {.share = setting.tolerance};
  if (setting.bandwidth_mb_per_s > 0) changed.plan.bandwidth_mb_per_s = setting.bandwidth_mb_per_s;
  changed.parallel.tensor_model_parallel_size = setting.tensor;
  changed.parallel.pipeline_model_parallel_size = setting.stages;
  if (setting.stages > 1) {
    changed.parallel.pipeline_schedule = setting.schedule;
    changed.parallel.outstanding_weight_gradients = setting.outstanding;
    changed.parallel.virtual_stages = setting.virtual_stages;
  }
  changed.batch.nano_batches = setting.nano_batches;
  changed.batch.nano_batch_tokens = setting.nano_batch_tokens;
  changed.train.overlap = setting.overlap;
  changed.train.recompute = setting.recompute;
  changed.exchange.keys = setting.keys;
  changed.cluster.ranks_per_node = setting.ranks_per_node;
  return changed;
}

std::vector<std::string> words_of(const Config& config, const Setting& setting) {
  std::vector<std::string> words;
  const auto add = [&](std::string_view key, const auto& value) {
    words.push_back(fmt::format("{}={}", key, value));
  };
  add("parallel.tensor_model_parallel_size", setting.tensor);
  add("parallel.pipeline_model_parallel_size", setting.stages);
  if (setting.stages > 1) {
    add("parallel.pipeline_schedule", schedule_name(setting.schedule));
    add("parallel.outstanding_weight_gradients", setting.outstanding);
  }
  add("batch.nano_batches", setting.nano_batches);
  add("batch.nano_batch_tokens", setting.nano_batch_tokens);
  add("batch.max_document_tokens", config.batch.max_document_tokens);
  add("train.overlap", overlap_name(setting.overlap));
  add("train.recompute", recompute_name(setting.recompute));
  add("exchange.keys", keys_word(setting.keys));
  add("plan.scheduler", setting.scheduler);
  if (setting.max_tokens > 0) add("plan.max_tokens_per_worker", setting.max_tokens);
  if (setting.tolerance > 0) add("plan.tolerance", setting.tolerance);
  if (setting.bandwidth_mb_per_s > 0) add("plan.bandwidth_mb_per_s", setting.bandwidth_mb_per_s);
  if (config.plan.spread != setting.spread) add("plan.spread", setting.spread);
  if (!find_scheduler(setting.scheduler).split_kv) {
    if (config.plan.split_kv) add("plan.split_kv", false);
    if (config.plan.fill_ticks != FillTicks::kExact) add("plan.fill_ticks", "exact");
  }
  if (config.cluster.ranks_per_node != setting.ranks_per_node)
    add("cluster.ranks_per_node", setting.ranks_per_node);
  return words;
}

std::string_view recompute_name(Recompute recompute) {
  return recompute == Recompute::kNone        ? "none"
         : recompute == Recompute::kSelective ? "selective"
                                              : "full";
}

std::string division_text(const Setting& setting) {
  return fmt::format("T = {}, P = {}, D = {}", setting.tensor, setting.stages, setting.replicas);
}

std::string order_of(const Setting& setting) {
  std::string order(overlap_name(setting.overlap));
  if (setting.tolerance > 0) order += fmt::format(", tolerance {:g}", setting.tolerance);
  if (setting.spread) order += ", spread";
  if (setting.stages == 1) return order;
  if (setting.virtual_stages > 1)
    return fmt::format("1f1b of {} virtual stages, {}", setting.virtual_stages, order);
  return fmt::format("{}, {} outstanding, {}", schedule_name(setting.schedule), setting.outstanding,
                     order);
}

}  // namespace distca
