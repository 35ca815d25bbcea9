#include "cli/best_found.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/parallel.h"

namespace distca::cli {
namespace {

/// Steps that are played at the same time: each takes up to some 6 GiB.
constexpr int kOwnTogether = 8;

/// One of the steps to play.
struct OwnStep {
  const PlayedSetting* setting;
  int64_t step;
  double* seconds;  // the result; 0 if the setting cannot be planned
};

double own_seconds(const Search& search, const StepArguments& asked, const OwnStep& of) {
  const Config own = config_of(search.config, of.setting->setting);
  StepArguments of_step = asked;
  of_step.step = of.step;
  try {
    return simulate_step(own, asked_step(own, of_step).batch, search.gpus, search.machine,
                         {.sensitivities = false,
                          .plain_packing = false,
                          .is_first_step = of.step == 1,
                          .threads = 2})
        .seconds;
  } catch (const Error&) {  // its cap is below a document that is whole there, mostly
    return 0;
  }
}

Json setting_json(const Search& search, const PlayedSetting& played) {
  const Setting& setting = played.setting;
  Json parts = Json::object();
  for (const Loss& loss : kLosses) {
    std::string key = loss.name;
    std::erase(key, ',');
    std::ranges::replace(key, ' ', '_');
    parts[key] = loss.seconds(played);
  }
  return {{"tensor", setting.tensor},
          {"stages", setting.stages},
          {"replicas", setting.replicas},
          {"nano_batches", setting.nano_batches},
          {"order", order_of(setting)},
          {"recompute", recompute_name(setting.recompute)},
          {"step_s", played.seconds},
          {"tokens_per_s", played.tokens_per_s},
          {"share_of_peak", played.share_of_peak},
          {"peak_bytes", std::llround(played.fullest().peak.total())},
          {"peak_where", played.fullest().peak.where},
          {"plan_hash", fmt::format("{:016x}", played.figures.hash)},
          {"parts_s", std::move(parts)},
          // Nobody can train with virtual stages.
          {"words", setting.virtual_stages > 1 ? std::vector<std::string>()
                                               : words_of(search.config, setting)}};
}

}  // namespace

void play_own_steps(Search& search, const StepArguments& asked) {
  const int64_t last = std::min(search.config.train.steps, search.step + kOwnSteps - 1);
  std::vector<OwnStep> steps;
  search.own.resize(search.found.size());
  for (size_t i = 0; i < search.found.size(); ++i) {
    const std::vector<PlayedSetting>& best = search.found[i].best;
    search.own[i].resize(best.size());
    for (size_t k = 0; k < best.size(); ++k) {
      OwnSteps& own = search.own[i][k];
      own.resize(k == 0 ? static_cast<size_t>(last - search.step + 1) : 1);
      for (int64_t step = search.step; double& seconds : own)
        steps.push_back({&best[k], step++, &seconds});
    }
  }
  for_each_in_parallel(steps.size(), std::min(threads_here(), kOwnTogether),
                       [&](size_t i) { *steps[i].seconds = own_seconds(search, asked, steps[i]); });
  const auto drop_unplanned = [](OwnSteps& own) {
    own.erase(std::ranges::find(own, 0.0), own.end());
  };
  for (std::vector<OwnSteps>& own : search.own) std::ranges::for_each(own, drop_unplanned);
}

std::vector<double> own_ratios(const Search& search, size_t found) {
  std::vector<double> ratios;
  const OwnSteps& ours = search.own[0][0];
  const OwnSteps& other = search.own[found][0];
  for (size_t i = 0; i < std::min(ours.size(), other.size()); ++i)
    ratios.push_back(other[i] / ours[i]);
  return ratios;
}

Json json_of(const Search& search) {
  Json all = Json::array();
  for (size_t i = 0; i < search.found.size(); ++i) {
    const Found& found = search.found[i];
    Json best = Json::array(), divisions = Json::array();
    for (size_t k = 0; k < found.best.size(); ++k) {
      best.push_back(setting_json(search, found.best[k]));
      if (i == 0 && !search.own[0][k].empty())
        best.back()["own_cuts_step_s"] = search.own[0][k].front();
    }
    for (const Division& of : found.divisions) {
      Json json{{"tensor", of.tensor}, {"stages", of.stages}, {"replicas", of.replicas}};
      if (of.best) json["best"] = setting_json(search, *of.best);
      if (!of.best && of.nearest) json["least_bytes"] = std::llround(of.nearest->bytes.total());
      divisions.push_back(std::move(json));
    }
    all.push_back({{"name", found.contestant.name},
                   {"settings", found.settings},
                   {"predicted", found.played},
                   {"too_large", found.too_large},
                   {"ruled_out", found.ruled_out},
                   {"refused", found.refused},
                   {"best", std::move(best)},
                   {"divisions", std::move(divisions)}});
    if (found.best.empty() || search.own[i][0].empty()) continue;
    all.back()["own_cuts_step_s"] = search.own[i][0].front();
    all.back()["own_cuts_steps_s"] = search.own[i][0];
  }
  return {{"gpus", search.gpus},          {"machine", search.machine.name},
          {"step", search.step},          {"tokens", search.tokens()},
          {"command", search.command},    {"most_nano_batches", search.nano_batches},
          {"contestants", std::move(all)}};
}

}  // namespace distca::cli
