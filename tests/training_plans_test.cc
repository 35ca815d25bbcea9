// `distca train` from end to end: what plans are made with, recorded, and no loss changes by it.

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <regex>

#include "distca/base/text.h"
#include "distca/batch/indexed_dataset.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

class PlansOfTrainingTest : public TrainingTest {};

TEST_F(PlansOfTrainingTest, kept_and_resent_keys_give_the_same_bits_and_memory_chooses) {
  const Words two = {"--workers", "2", "comm.backend=threads", "batch.seed=6"};
  const auto redispatched = [&](const char* name) {
    int64_t sum = 0;
    for (const Json& line : metrics(name))
      sum += line.at("nano_batches_redispatched").get<int64_t>();
    return sum;
  };
  const Training kept = train("kept", joined(two, {"exchange.keys=keep"}));
  const Training again = train("redispatched", joined(two, {"exchange.keys=redispatch"}));
  expect_same_bits(again, kept);
  EXPECT_GT(again.bytes_sent, kept.bytes_sent);
  EXPECT_EQ(redispatched("kept"), 0);
  EXPECT_EQ(redispatched("redispatched"), 6 * 2);
  expect_same_bits(train("auto", two), kept);
  EXPECT_EQ(redispatched("auto"), 0) << "without a cap";
  // Some batches keep their keys within it, others cannot.
  expect_same_bits(train("cap", joined(two, {"plan.max_memory_gib=0.002005"})), kept);
  EXPECT_GT(redispatched("cap"), 0);
  EXPECT_LT(redispatched("cap"), 6 * 2);
}

TEST_F(PlansOfTrainingTest, what_is_computed_again_takes_no_memory_and_changes_no_bit) {
  const auto peak = [&](const char* name) {
    const std::vector<int64_t> bytes = metrics(name).back().at("peak_bytes");
    return std::ranges::max(bytes);
  };
  const Words two = {"--workers", "2", "comm.backend=threads"};
  const Training kept = train("none", two);
  for (const char* recompute : {"selective", "full"})
    expect_same_bits(train(recompute, joined(two, {fmt::format("train.recompute={}", recompute)})),
                     kept);
  EXPECT_LT(peak("selective"), peak("none"));
  EXPECT_LT(peak("full"), peak("selective"));
}

class ConfigPlanTest : public PlansOfTrainingTest {
 protected:
  /// The summary that `distca plan` gives of a step of the run that these words of `distca train`
  /// start, without times.
  Json planned(int64_t step, Words words) const {
    words[0] = "plan";
    Json plans =
        Json::parse(succeed(joined(words, {"--step", std::to_string(step), "--summary-json"})).out);
    plans.erase("plan_us");  // measured, as is the next
    plans.erase("validate_us");
    return plans;
  }
  /// Lines of people may end elsewhere where the name in them is longer.
  static std::string without_line_ends(std::string text, const std::string& name) {
    text.replace(text.find(name), name.size(), "NAME");
    return std::regex_replace(text, std::regex("\\s+"), " ");
  }
};

TEST_F(ConfigPlanTest, a_plan_of_a_configuration_is_the_one_that_the_run_has) {
  write_file_atomically(folder_ / "c.toml", "[train]\nsteps = 12\nvalidation_every = 5\n");
  const Words file = {"--config", folder_ / "c.toml", "comm.backend=threads"};
  const std::vector<Words> runs = {
      {"--workers", "1"},
      {"--workers", "2"},
      {"--workers", "3"},
      {"--workers", "2", "servers.dedicated=1"},
      {"--workers", "2", "model.sliding_window=100",
       "model.layer_types=sliding_attention,full_attention"},
      {"--workers", "2", "plan.profile=h200", "plan.tolerance=auto"},
      {"--workers", "2", "parallel.pipeline_model_parallel_size=2", "batch.nano_batches=4"},
      {"--workers", "2", "parallel.pipeline_model_parallel_size=2",
       "parallel.pipeline_schedule=1f1b"}};
  for (size_t i = 0; i < runs.size(); ++i) {
    Words words =
        joined(joined(train_arguments(prefix_, folder_ / std::to_string(i), {}), file), runs[i]);
    std::erase_if(words, [](const std::string& word) {  // the file gives them
      return word.starts_with("train.steps=") || word.starts_with("train.validation_every=");
    });
    const std::string said = succeed(joined(words, {"--dry-run"})).out;
    succeed(words);
    const std::vector<Json> lines = metrics(std::to_string(i));
    ASSERT_EQ(lines.size(), 12u);
    for (const int64_t step : {1, 10, 12}) {
      const Json plan = planned(step, words), &line = lines[step - 1];
      for (const char* key : {"step", "plan_hash", "tokens", "imbalance_before", "imbalance_after"})
        EXPECT_EQ(plan.at(key), line.at(key)) << fmt::format("{}", fmt::join(words, " ")) << key;
    }
    EXPECT_NE(lines[0].at("plan_hash"), lines[9].at("plan_hash"));
    // A dry run says the same of the first step.
    EXPECT_THAT(std::regex_replace(said, std::regex("\n  "), " "),
                HasSubstr(fmt::format("has max/mean {:.3f} before balancing and {:.3f} after; the "
                                      "ranks on this machine send {} for it{}, forward",
                                      lines[0].at("imbalance_before").get<double>(),
                                      lines[0].at("imbalance_after").get<double>(),
                                      human_bytes(lines[0].at("bytes_sent").get<int64_t>()),
                                      i < 6 ? "" : " and from stage to stage")));
  }
}

TEST_F(ConfigPlanTest, for_people_every_nano_batch_or_tick_has_its_table_and_a_small_set_is_said) {
  write_file_atomically(folder_ / "c.toml", "[batch]\nnano_batch_tokens = 512\n");
  const auto said = [&](const Words& more) {
    const Words words = {"plan",      "--config", folder_ / "c.toml",
                         "--workers", "2",        "data.prefix=" + prefix_.string()};
    return succeed(joined(words, more)).out;
  };
  EXPECT_THAT(said({"batch.nano_batches=2"}),
              AllOf(HasSubstr("Step 1 of 100: 2 nano-batches of 512 tokens on 2 workers\n"),
                    HasSubstr("Nano-batch 1 of 2\n"), HasSubstr("Nano-batch 2 of 2\n"),
                    Not(HasSubstr(" times"))));
  EXPECT_THAT(said({"parallel.pipeline_model_parallel_size=2", "batch.nano_batches=4"}),
              AllOf(HasSubstr("2 stages"), HasSubstr("exposed ms"), Not(HasSubstr("Nano-batch"))));
  EXPECT_THAT(said({"batch.nano_batch_tokens=65536"}),
              AllOf(HasSubstr(" tokens to train on, and a step takes 65,536: it has each document"),
                    HasSubstr("Nano-batch 1 of 1\n")));
  EXPECT_THAT(said({"train.deterministic=false", "servers.reweight=true"}),
              HasSubstr("a run plans with the speeds that it measures"));
}

TEST_F(ConfigPlanTest, compare_shows_all_schedulers_on_the_first_nano_batch) {
  write_file_atomically(folder_ / "c.toml", "");
  EXPECT_THAT(succeed({"plan", "--config", folder_ / "c.toml", "--workers", "2", "--compare",
                       "--step", "3", "data.prefix=" + prefix_.string()})
                  .out,
              AllOf(HasSubstr("Nano-batch 1 of step 3\n"), HasSubstr("\nbalanced "),
                    HasSubstr("\nlocal "), HasSubstr("\ngreedy ")));
}

TEST_F(ConfigPlanTest, a_list_of_lengths_is_planned_as_the_data_set_that_has_them) {
  const fs::path lengths = folder_ / "lengths.json";
  write_file_atomically(lengths, Json(IndexedDataset(prefix_).document_lengths()).dump());
  write_file_atomically(folder_ / "c.toml", "");
  const Words of_data = joined(arguments(), {"--config", folder_ / "c.toml", "--workers", "2"});
  const Words of_lengths = joined(of_data, {"data.prefix=absent", "--lengths", lengths});
  for (const int64_t step : {1, 6}) EXPECT_EQ(planned(step, of_lengths), planned(step, of_data));
  const std::string dry = succeed(joined(of_lengths, {"--dry-run"})).out;
  EXPECT_EQ(without_line_ends(dry, lengths),
            without_line_ends(succeed(joined(of_data, {"--dry-run"})).out, prefix_));
  EXPECT_FALSE(fs::exists(run_));
}

TEST_F(PlansOfTrainingTest, with_a_profile_predicted_attention_times_stand_beside_measured_ones) {
  const Outcome outcome =
      succeed(arguments({"--workers", "3", "comm.backend=threads", "plan.profile=h200"}));
  for (const Json& line : metrics()) {
    for (const char* name : {"attention_s", "attention_predicted_s"}) {
      ASSERT_EQ(line.at(name).size(), 3u) << name;
      for (const Json& seconds : line.at(name)) EXPECT_GT(seconds, 0) << name;
    }
    EXPECT_THAT(line.at("price").get<std::string>(), HasSubstr("NVIDIA H200 (analytic)"));
  }
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("processor time; predicted by the profile of NVIDIA H200"),
                    HasSubstr("server  2  measured"),
                    HasSubstr("relative error of a server's predicted time")));
}

TEST_F(PlansOfTrainingTest, the_last_lines_say_what_waiting_cost) {
  const auto last_lines = [&](const std::string& name, const Words& more) {
    return succeed(arguments(joined(more, {"comm.backend=threads"}), name)).out;
  };
  const std::string waited = "\nBalance\n  ranks waited ";
  for (const auto& [name, more] : std::map<std::string, Words>{
           {"balanced", {"--workers", "2"}},
           {"served", {"--workers", "2", "servers.dedicated=1"}},
           {"staged", {"--workers", "2", "parallel.pipeline_model_parallel_size=2"}}}) {
    EXPECT_THAT(last_lines(name, more), HasSubstr(waited)) << name;
    for (const Json& line : metrics(name)) {
      ASSERT_EQ(line.at("waited_s").size(), name == "served" ? 3u : 2u) << name;
      for (const Json& seconds : line.at("waited_s")) EXPECT_GE(seconds, 0) << name;
    }
  }
  EXPECT_THAT(last_lines("alone", {"--workers", "1"}), Not(HasSubstr("\nBalance\n")));
}

TEST_F(PlansOfTrainingTest, measured_speeds_enter_plans_as_recorded_values_and_change_no_loss) {
  const Training one = train("one", {"model.dtype=float64", "--workers", "1"});
  // Validation batches in between or not: speeds hold from the step that was said.
  for (const char* every : {"1", "3"}) {
    const Training weighed = train(
        every, {"model.dtype=float64", "comm.backend=threads", "--workers", "2",
                "servers.dedicated=1", "servers.reweight=true", "plan.tolerance=auto",
                "train.deterministic=false", fmt::format("train.validation_every={}", every)});
    expect_near(weighed.losses, one.losses, 1e-10, "loss");
    std::map<int64_t, Json> recorded;  // by the step from which they hold
    for (const Json& line : metrics(every)) {
      const int64_t step = line.at("step");
      EXPECT_FALSE(line.at("chosen").empty());
      if (line.contains("speeds")) {
        const int64_t from_step = line.at("speeds").at("from_step");
        EXPECT_EQ(from_step, step == 1 ? 1 : step + 2);
        recorded[from_step] = line.at("speeds");
      }
      ASSERT_TRUE(recorded.contains(1)) << "nothing in the first line";
      EXPECT_EQ(line.at("speeds_from_step"), std::prev(recorded.upper_bound(step))->first);
    }
    ASSERT_GT(recorded.size(), 1u);
    for (const auto& [from_step, speeds] : recorded) {
      EXPECT_GT(speeds.at("bytes_per_us"), 0) << "plan.tolerance weighs with it from step 1 on";
      EXPECT_EQ(speeds.contains("linear_ps_per_token"), from_step > 1);
      if (from_step == 1) continue;
      EXPECT_EQ(speeds.at("linear_ps_per_token").size(), 3u);
      EXPECT_GT(speeds.at("linear_ps_per_token").at(1), 0);
      EXPECT_EQ(speeds.at("linear_ps_per_token").at(2), 0) << "a dedicated server has no tokens";
      int64_t attention = 0;
      for (const Json& rank : speeds.at("attention_ps_per_kload")) attention += rank.get<int64_t>();
      EXPECT_GT(attention, 0);
    }
  }
}

TEST_F(PlansOfTrainingTest, frozen_runs_with_an_automatic_tolerance_repeat_bit_for_bit) {
  const Words options = {"--workers", "2", "plan.tolerance=auto", "plan.bandwidth_mb_per_s=20",
                         "comm.backend=threads"};
  const Training first = train("first", options);
  expect_same_bits(train("second", options), first);
  for (const Json& line : metrics("first")) {
    EXPECT_FALSE(line.contains("speeds"));
    EXPECT_FALSE(line.contains("speeds_from_step"));
    EXPECT_FALSE(line.at("chosen").empty());
  }
}

}  // namespace
}  // namespace distca::testing
