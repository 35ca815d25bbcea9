#include "distca/forecast/find_best.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "distca/base/error.h"
#include "distca/forecast/setting_bounds.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kSmallRun = {"model.hidden_size=512",
                                            "model.intermediate_size=1024",
                                            "model.num_attention_heads=4",
                                            "model.num_key_value_heads=2",
                                            "model.head_dim=128",
                                            "model.num_hidden_layers=4",
                                            "model.vocab_size=512",
                                            "model.dtype=bfloat16",
                                            "batch.nano_batches=2",
                                            "batch.nano_batch_tokens=32768",
                                            "batch.max_document_tokens=16384",
                                            "parallel.use_distributed_optimizer=true"};

BestRequest small_request(int gpus = 4) {
  BestRequest request{.config = load_config("", kSmallRun),
                      .batch = {},
                      .gpus = gpus,
                      .machine = machine_by_name("h200"),
                      .wanted = 10};
  for (const auto& lengths :
       {std::vector<int64_t>{12000, 3000, 1384}, {9000, 7000, 384}, {16384}, {8192, 4096, 4096}})
    request.batch.push_back({.nano_batch = NanoBatch::from_lengths(lengths), .sources = {}});
  return request;
}

std::vector<Setting> all_settings(const BestRequest& request, const Contestant& contestant) {
  return settings_of(contestant, request.config,
                     {.gpus = request.gpus,
                      .ranks_per_node = 8,
                      .most_nano_batches = std::ssize(request.batch),
                      .bandwidth_mb_per_s = network_mb_per_s(request.machine, request.gpus)});
}

std::vector<double> seconds_of_best(const Found& found) {
  std::vector<double> seconds;
  for (const PlayedSetting& played : found.best) seconds.push_back(played.seconds);
  return seconds;
}

/// The shortest steps of all settings, each of which is predicted; ours then also more evenly.
std::vector<double> by_brute_force(const BestRequest& request, const Contestant& contestant) {
  const size_t wanted = contestant.is_ours() ? request.wanted : 1;
  std::vector<PlayedSetting> all;
  const auto predict = [&](const std::vector<Setting>& settings) {
    for (const Setting& setting : settings) {
      const Tried tried = try_setting(request, setting);
      if (tried.played) all.push_back(*tried.played);
    }
    std::ranges::stable_sort(all, {}, &PlayedSetting::seconds);
    all.resize(std::min(all.size(), wanted));
  };
  predict(all_settings(request, contestant));
  for (const auto variants_of : {with_tolerances, with_spread}) {
    std::vector<Setting> variants;
    for (const PlayedSetting& played : all) {
      if (!contestant.is_ours()) continue;
      for (const Setting& setting : variants_of(request.config, played.setting))
        variants.push_back(setting);
    }
    predict(variants);
  }
  std::vector<double> seconds;
  for (const PlayedSetting& played : all) seconds.push_back(played.seconds);
  return seconds;
}

TEST(FindBest, finds_what_predicting_every_setting_finds) {
  const BestRequest request = small_request();
  const std::vector<Found> found = find_best(request);
  ASSERT_EQ(found.size(), contestants().size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(seconds_of_best(found[i]), by_brute_force(request, contestants()[i]))
        << contestants()[i].name;
    EXPECT_EQ(found[i].settings,
              found[i].played + found[i].too_large + found[i].refused + found[i].ruled_out);
  }
  // Bounds are near steps where nothing takes time but what they count.
  BestRequest quick = request;
  quick.wanted = 1;
  for (const MachineNumber number :
       {MachineNumber::kAttentionCallUs, MachineNumber::kIssueUs, MachineNumber::kInsideLatencyUs,
        MachineNumber::kBetweenLatencyUs})
    quick.machine.at(number).value = 0;
  // In all of our settings ranks compute as long; the ends of pipelines differ for rivals.
  int64_t ruled_out = 0;
  for (const Found& one : find_best(quick)) ruled_out += one.ruled_out;
  EXPECT_GT(ruled_out, 0);
  // Every way to divide four GPUs whose model has four heads: T = 1 with 1, 2 and 4 stages, T = 2
  // with 1 and 2, and T = 4.
  EXPECT_EQ(found[0].divisions.size(), 6U);
  for (const Division& of : found[0].divisions) {
    EXPECT_TRUE(of.best) << of.tensor << " x " << of.stages;
    EXPECT_EQ(of.tensor * of.stages * of.replicas, request.gpus);
  }
}

TEST(FindBest, no_step_is_shorter_than_its_bound_and_no_peak_lower) {
  const BestRequest request = small_request();
  const BatchWork work = batch_work(request.config, request.batch);
  for (const Contestant& contestant : contestants()) {
    for (const Setting& setting : all_settings(request, contestant)) {
      if (setting.max_tokens > 0) continue;  // not every batch can be packed so
      const std::vector<Setting> reliefs = reliefs_of(setting);
      for (const Setting& relieved : {reliefs.front(), reliefs.back()}) {
        const Config config = config_of(request.config, relieved);
        const Batch batch = joined(request.batch, relieved.nano_batches);
        const SimulatedStep step = simulate_step(config, batch, request.gpus, request.machine,
                                                 {.sensitivities = false, .plain_packing = false});
        const auto ruled_out = [&](double most_s) {
          return simulate_step(config, batch, request.gpus, request.machine,
                               {.sensitivities = false, .plain_packing = false, .most_s = most_s})
              .is_ruled_out;
        };
        const std::string words = contestant.name + ", " + order_of(relieved) + ", " +
                                  division_text(relieved) + ", recompute " +
                                  std::string(recompute_name(relieved.recompute));
        EXPECT_LE(least_step_s(config, request.gpus, request.machine, work), step.seconds) << words;
        EXPECT_FALSE(ruled_out(step.seconds)) << words;
        EXPECT_EQ(ruled_out(.5 * step.busy_s),
                  setting.stages == 1 || setting.schedule == PipelineSchedule::kAtHome)
            << words;
        EXPECT_LE(least_peak(config, request.gpus).total(), step.fullest().peak.total()) << words;
      }
    }
  }
}

TEST(FindBest, a_small_memory_excludes_settings_and_takes_more_recomputation) {
  BestRequest request = small_request();
  const std::vector<Found> roomy = find_best(request);
  double least = roomy[0].best[0].fullest().peak.total();
  for (const PlayedSetting& played : roomy[0].best)
    least = std::min(least, played.fullest().peak.total());
  request.machine.at(MachineNumber::kMemoryGib).value = 0.9 * least / 0x1p30;
  const std::vector<Found> tight = find_best(request);
  EXPECT_GT(tight[0].too_large, 0);
  ASSERT_FALSE(tight[0].best.empty());
  for (const PlayedSetting& played : tight[0].best) {
    EXPECT_LE(played.fullest().peak.total(), 0.9 * least);
    EXPECT_GE(played.seconds, roomy[0].best[0].seconds);
  }
  request.machine.at(MachineNumber::kMemoryGib).value = 0.001;
  try {
    find_best(request);
    FAIL() << "nothing fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), HasSubstr("no setting of 4 GPUs fits the 0.001 GiB of h200: T = "));
    EXPECT_THAT(error.what(), HasSubstr("GiB, of which "));
  }
}

TEST(FindBest, a_setting_beyond_a_cap_is_tried_with_more_recomputation) {
  BestRequest request = small_request();
  request.config.model.num_hidden_layers = 24;
  const Setting setting{.scheduler = "balanced",
                        .replicas = 4,
                        .ranks_per_node = 8,
                        .nano_batches = 4,
                        .nano_batch_tokens = 16384};
  const Tried free = try_setting(request, setting);
  ASSERT_TRUE(free.played);
  const Setting full = reliefs_of(setting).back();
  EXPECT_EQ(full.recompute, Recompute::kFull);
  const double least = simulate_step(config_of(request.config, full), request.batch, 4,
                                     request.machine, {.sensitivities = false})
                           .fullest()
                           .peak.total();
  ASSERT_LT(least, free.played->fullest().peak.total());
  // Less than the activations of whole layers, which full recomputation does not keep.
  request.config.plan.max_memory_gib = .9 * (free.played->fullest().peak.total() - least) / 0x1p30;
  const Tried capped = try_setting(request, setting);
  ASSERT_TRUE(capped.played) << capped.refused;
  EXPECT_NE(capped.played->setting.recompute, setting.recompute);
}

TEST(FindBest, the_result_is_the_same_each_time) {
  const BestRequest request = small_request();
  const std::vector<Found> once = find_best(request), again = find_best(request);
  for (size_t i = 0; i < once.size(); ++i) {
    ASSERT_EQ(once[i].best.size(), again[i].best.size());
    EXPECT_EQ(once[i].played, again[i].played);
    for (size_t k = 0; k < once[i].best.size(); ++k) {
      EXPECT_EQ(once[i].best[k].setting, again[i].best[k].setting);
      EXPECT_EQ(once[i].best[k].figures.hash, again[i].best[k].figures.hash);
      EXPECT_EQ(once[i].best[k].seconds, again[i].best[k].seconds);
    }
  }
}

TEST(FindBest, words_make_the_configuration_of_a_setting) {
  std::vector<std::string> given = kSmallRun;
  given.insert(given.end(), {"plan.split_kv=true", "plan.spread=true", "train.recompute=full",
                             "exchange.keys=keep"});
  BestRequest request = small_request();
  request.config = load_config("", given);
  for (const Contestant& contestant : contestants()) {
    std::vector<Setting> settings = all_settings(request, contestant);
    if (contestant.is_ours()) {
      for (const Setting& evened : with_tolerances(request.config, settings.front()))
        settings.push_back(with_spread(request.config, evened).at(0));
    }
    for (const Setting& setting : settings) {
      for (const Setting& relieved : reliefs_of(setting)) {
        std::vector<std::string> words = given;
        const std::vector<std::string> of_setting = words_of(request.config, relieved);
        words.insert(words.end(), of_setting.begin(), of_setting.end());
        ASSERT_EQ(recorded_config(load_config("", words)),
                  recorded_config(config_of(request.config, relieved)));
      }
    }
  }
}

TEST(FindBest, the_best_of_ours_are_also_planned_otherwise) {
  BestRequest request = small_request();
  Setting setting = all_settings(request, contestants()[0]).front();
  const Setting first = setting;
  setting.recompute = Recompute::kFull;
  setting.keys = Config::Exchange::Keys::kRedispatch;
  const std::vector<Setting> evened = with_tolerances(request.config, setting);
  ASSERT_EQ(evened.size(), kTolerances.size());
  for (size_t i = 0; i < evened.size(); ++i) {
    EXPECT_EQ(config_of(request.config, evened[i]).plan.tolerance.share, kTolerances[i]);
    EXPECT_EQ(evened[i].recompute, first.recompute);
    EXPECT_EQ(evened[i].keys, first.keys);
  }
  const std::vector<Setting> spread = with_spread(request.config, evened[0]);
  ASSERT_EQ(spread.size(), 1U);
  const Config config = config_of(request.config, spread[0]);
  EXPECT_TRUE(config.plan.spread);
  EXPECT_EQ(config.plan.tolerance.share, kTolerances[0]);
  EXPECT_TRUE(with_spread(request.config, spread[0]).empty());
  EXPECT_GT(find_best(request)[0].settings, std::ssize(all_settings(request, contestants()[0])));
  setting.stages = setting.replicas = 1;
  EXPECT_TRUE(with_tolerances(request.config, setting).empty()) << "a server alone";
  EXPECT_TRUE(with_spread(request.config, setting).empty());
  request.config.plan.tolerance = {.share = kTolerances[1]};
  EXPECT_EQ(with_tolerances(request.config, first).size(), 1U) << "one is the configuration's";
}

TEST(FindBest, full_recomputation_is_told_from_other_linear_work) {
  const BestRequest request = small_request();
  const BatchWork work = batch_work(request.config, request.batch);
  for (const int stages : {1, 2}) {
    for (const int tensor : {1, 2}) {
      Setting setting{.tensor = tensor,
                      .stages = stages,
                      .replicas = 4 / stages / tensor,
                      .ranks_per_node = 8,
                      .nano_batches = 4,
                      .nano_batch_tokens = 16384};
      const auto linear_s = [&](Recompute recompute) {
        setting.recompute = recompute;
        const SimulatedStep step =
            simulate_step(config_of(request.config, setting), request.batch, 4, request.machine,
                          {.sensitivities = false, .plain_packing = false});
        double linear = 0;
        for (const SimulatedStage& stage : step.stages) linear += stage.mean.linear / stages;
        return linear;
      };
      const double more = linear_s(Recompute::kFull) - linear_s(Recompute::kNone);
      setting.recompute = Recompute::kFull;
      EXPECT_NEAR(recomputed_s(config_of(request.config, setting), 4, request.machine, work) / more,
                  1, 1e-6);
    }
  }
}

TEST(FindBest, rivals_have_virtual_stages_where_they_divide_the_layers_and_ours_a_bandwidth) {
  const BestRequest request = small_request();
  std::map<std::string, std::set<std::tuple<int, int, int64_t>>> found;  // by contestant
  for (const Contestant& contestant : contestants()) {
    for (const Setting& setting : all_settings(request, contestant)) {
      EXPECT_EQ(setting.bandwidth_mb_per_s > 0, contestant.is_ours() && setting.stages > 1);
      if (setting.virtual_stages > 1)
        found[contestant.name].insert(
            {setting.stages, setting.virtual_stages, setting.nano_batches});
    }
  }
  EXPECT_EQ(found.size(), contestants().size() - 1);
  // Two stages have 4 layers, and there are at most 4 nano-batches.
  for (const auto& [name, settings] : found) {
    EXPECT_EQ(settings, (std::set<std::tuple<int, int, int64_t>>{{2, 2, 2}, {2, 2, 4}})) << name;
  }
  // With fewer layers at a time, a virtual stage begins earlier: the last of two ends earlier.
  BestRequest even = request;
  even.batch.assign(4, {.nano_batch = NanoBatch::from_lengths({16384}), .sources = {}});
  Setting setting{.scheduler = "local",
                  .stages = 2,
                  .replicas = 2,
                  .ranks_per_node = 8,
                  .nano_batches = 4,
                  .nano_batch_tokens = 16384,
                  .schedule = PipelineSchedule::kAtHome};
  const double plain = try_setting(even, setting).played->seconds;
  setting.virtual_stages = 2;
  const PlayedSetting interleaved = *try_setting(even, setting).played;
  // Four nano-batches on two stages: 5 turns, and 4.5 with half of a turn less at each end.
  EXPECT_LT(interleaved.seconds, plain);
  EXPECT_GT(interleaved.seconds, .9 * plain);
}

TEST(FindBest, nano_batches_are_a_multiple_of_the_configurations) {
  const auto most = [](int64_t nano_batches, int64_t tokens, int64_t document) {
    return most_nano_batches({.nano_batch_tokens = tokens,
                              .nano_batches = nano_batches,
                              .max_document_tokens = document});
  };
  EXPECT_EQ(most(8, 262144, 131072), 16);
  EXPECT_EQ(most(2, 32768, 16384), 4);
  EXPECT_EQ(most(3, 1000, 1000), 3);
  EXPECT_EQ(most(3, 1000, 300), 6);
  EXPECT_EQ(most(2, 1 << 20, 128), 64);
  EXPECT_EQ(most(100, 4096, 128), 100);
}

TEST(FindBest, keys_that_the_search_chooses_are_refused) {
  BestRequest request = small_request();
  request.config.servers.dedicated = 1;
  EXPECT_THROW(find_best(request), Error);
  request = small_request();
  request.config.parallel.pipeline_layers = {4};
  EXPECT_THROW(find_best(request), Error);
}

}  // namespace
}  // namespace distca
