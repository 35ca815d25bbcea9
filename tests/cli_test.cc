// The program as its users meet it: help, version, data, plan (`--program` and the page about it,
// too). `train` is in cli_train_test.cc, bad input in bad_input_test.cc.

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>

#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "distca/plan/plan.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/scheduler.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class CliTest : public FolderTest {
 protected:
  std::string in_folder(const char* name) const { return folder_ / name; }
};

constexpr const char* kWorkload = "distca/plan/testdata/workloads/pretrain_8x128k_0.json";

/// The heads that a rank of Llama 3 8B has at tensor parallelism 8, as the profile h200 does.
const Words kLlama = {"model.num_attention_heads=4", "model.num_key_value_heads=1",
                      "model.head_dim=128", "model.dtype=bfloat16"};

/// A plan of the workload that must succeed: what is printed.
std::string plan(const Words& options) {
  return succeed(joined({"plan", "--workload", kWorkload}, options)).out;
}
/// The figures of the step's first nano-batch.
Json plan_summary(const Words& options) {
  return Json::parse(plan(joined({"--summary-json"}, options))).at("nano_batches").at(0);
}

void expect_narrow(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(Cli, help_of_every_verb_ends_with_an_example_of_it) {
  std::vector<Words> verbs = {
      {"data"}, {"data", "prepare"}, {"data", "show"}, {"plan"},    {"trace"},           {"export"},
      {"init"}, {"monitor"},         {"simulate"},     {"kernels"}, {"kernels", "build"}};
#ifdef DISTCA_WITH_TORCH
  verbs.push_back({"train"});
  verbs.push_back({"generate"});
  verbs.push_back({"profile"});
#endif
  for (const Words& verb : verbs) {
    const std::string words = fmt::format("distca {}", fmt::join(verb, " "));
    const Outcome outcome = succeed(joined(verb, {"--help"}));
    EXPECT_EQ(outcome.err, "") << words;
    const size_t example = outcome.out.rfind("Example:  " + words);
    ASSERT_NE(example, std::string::npos) << outcome.out;
    const std::string last = outcome.out.substr(example);
    EXPECT_EQ(last.find('\n'), last.find_last_not_of('\n') + 1) << last;
    expect_narrow(outcome.out);
  }
}

TEST(Cli, help_lists_the_verbs) {
  EXPECT_THAT(succeed({"--help"}).out, AllOf(HasSubstr("\n  data "), HasSubstr("\n  plan ")));
}

TEST(Cli, version_names_the_build) {
#ifdef DISTCA_WITH_TORCH
  const auto torch = ContainsRegex("PyTorch [0-9]");
#else
  const auto torch = HasSubstr("PyTorch none");
#endif
  EXPECT_THAT(succeed({"--version"}).out,
              AllOf(StartsWith("distca "), HasSubstr(" build"), HasSubstr("CUDA "), torch));
}

TEST_F(CliTest, prepare_writes_what_show_counts) {
  write_file_atomically(folder_ / "text" / "a.md", "aaaa");
  write_file_atomically(folder_ / "text" / "deep" / "b.md", "ab");
  write_file_atomically(folder_ / "text" / "c.py", "not asked for");
  const Outcome prepared = succeed({"data", "prepare", "--text", in_folder("text"), "--glob",
                                    "*.md", "--tokenizer", "byte", "--out", in_folder("out/d")});
  EXPECT_EQ(prepared.err, "");
  EXPECT_THAT(files_below(folder_ / "out"), ElementsAre("d.bin", "d.idx", "d.json"));
  EXPECT_EQ(read_file(folder_ / "out" / "d.bin"), "aaaaab");

  const Json json = Json::parse(succeed({"data", "show", in_folder("out/d"), "--json"}).out);
  EXPECT_EQ(json.at("documents"), 2);
  EXPECT_EQ(json.at("tokens"), 6);
  EXPECT_EQ(json.at("longest_length"), 4);
  EXPECT_EQ(json.at("token_type"), "uint8");
  // 4 * 5 / 2 of 4 * 5 / 2 + 2 * 3 / 2 pairs.
  EXPECT_DOUBLE_EQ(json.at("longest_1_percent_attention_share"), 10.0 / 13.0);
  EXPECT_NEAR(json.at("unigram_nats"), 0.45056, 1e-5);  // -5/6 ln 5/6 - 1/6 ln 1/6
}

TEST_F(CliTest, a_data_set_beside_its_text_is_replaced_when_asked_and_never_read_as_text) {
  write_file_atomically(folder_ / "text" / "a.md", "aaaa");
  const Words command = {
      "data", "prepare", "--text", in_folder("text"), "--out", in_folder("text/set")};
  succeed(command);
  EXPECT_THAT(refusal(command), HasSubstr("text/set.bin is there already"));
  write_file_atomically(folder_ / "text" / "b.md", "bb");
  succeed(joined(command, {"--overwrite"}));
  EXPECT_EQ(read_file(folder_ / "text" / "set.bin"), "aaaabb");
}

TEST_F(CliTest, documents_that_a_plan_repeats_are_said) {
  write_file_atomically(folder_ / "l.json", "[100]");
  const Words command = {"plan",      "--lengths", in_folder("l.json"),
                         "--workers", "2",         "batch.nano_batch_tokens=550"};
  const std::string repeated = in_folder("l.json") +
                               " has 100 tokens to train on, and a step takes 550: it has each "
                               "document 5.5 times\n";
  EXPECT_THAT(run_distca(command).out, HasSubstr(repeated));
  EXPECT_THAT(run_distca(joined(command, {"--compare"})).out, HasSubstr(repeated));
  EXPECT_THAT(run_distca(joined(command, {"--json"})).out, StartsWith("{"));
  write_file_atomically(folder_ / "l.json", "[550]");
  EXPECT_THAT(run_distca(command).out, Not(HasSubstr("it has each document")));
}

TEST_F(CliTest, a_written_plan_reads_back_and_a_damaged_one_is_refused) {
  const std::string file = in_folder("plan.json");
  plan({"--out", file});
  std::string text = read_file(file);
  EXPECT_EQ(succeed({"plan", "--plan", file, "--json"}).out, text);
  write_file_atomically(file, text.substr(0, text.size() / 2));
  EXPECT_THAT(refusal({"plan", "--plan", file}), HasSubstr(file));
  const size_t kv = text.find("\"q\":[0,");
  ASSERT_NE(kv, std::string::npos);
  text.replace(kv, 8, "\"q\":[1,");  // the first query of a task is lost
  write_file_atomically(file, text);
  EXPECT_THAT(refusal({"plan", "--plan", file}), HasSubstr(file));
}

TEST_F(CliTest, plans_of_several_nano_batches_are_a_list_that_reads_back) {
  const std::string file = in_folder("plans.json");
  const std::string text = plan({"batch.nano_batches=2", "--json", "--out", file});
  EXPECT_EQ(read_file(file), text);
  const Json list = Json::parse(text);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(canonical_json(list[1]), plan({"--json"}));
  EXPECT_EQ(succeed({"plan", "--plan", file, "--json"}).out, text);
  EXPECT_THAT(succeed({"plan", "--plan", file}).out,
              AllOf(StartsWith("Plan 1 of 2\n"), HasSubstr("\nPlan 2 of 2\n")));
  const Json figures = Json::parse(succeed({"plan", "--plan", file, "--summary-json"}).out);
  EXPECT_EQ(figures.at("nano_batches").at(1), plan_summary({}));
}

TEST(Cli, a_workload_is_a_nano_batch_on_its_own_ranks_for_each_stage) {
  EXPECT_THAT(plan({"batch.nano_batches=2"}),
              StartsWith("Step 1 of 100: 2 nano-batches of 1,048,576 tokens on 8 workers\n"));
  EXPECT_THAT(plan({"parallel.pipeline_model_parallel_size=2"}),
              StartsWith("Step 1 of 100: 1 nano-batch of 1,048,576 tokens on 16 workers = 2 "
                         "stages (layers 0-1, 2-3) x 8 replicas\n"));
  const Json step = Json::parse(plan({"--workers", "4", "--summary-json"}));
  EXPECT_EQ(step.at("tokens"), 1'048'576);
  EXPECT_EQ(step.at("plan_hash").get<std::string>().size(), 16u);
  EXPECT_GT(step.at("plan_us"), 0);
  EXPECT_GT(step.at("validate_us"), 0);
  EXPECT_EQ(step.at("nano_batches").at(0).at("servers"), 4);
}

TEST(Cli, plan_of_a_workload_has_the_promised_figures) {
  const Json json = plan_summary({"plan.layout=sequential"});
  EXPECT_EQ(json.at("servers"), 8);
  EXPECT_EQ(json.at("scheduler"), "balanced");
  EXPECT_EQ(json.at("layout"), "sequential");
  EXPECT_EQ(json.at("violations"), Json::array());
  EXPECT_LE(json.at("max_over_mean"), 1.02);
  EXPECT_GT(json.at("max_over_mean_before"), 1.8);
  EXPECT_LT(json.at("tokens_max").get<int64_t>() - json.at("tokens_min").get<int64_t>(), 256);
  for (const char* name : {"qkv_bytes", "o_bytes", "max_send_bytes", "max_recv_bytes", "tasks",
                           "max_memory_bytes", "lower_bound_bytes"})
    EXPECT_GT(json.at(name), 0) << name;
  EXPECT_EQ(json.at("hash").get<std::string>().size(), 16u);
}

/// The cells of each row of the table of servers, from its header to its last row, of max/mean.
std::vector<Words> server_rows(const std::string& text) {
  std::vector<Words> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    if (rows.empty() ? !line.starts_with("server") : rows.back()[0] == "max/mean") continue;
    std::istringstream cells(line);
    rows.emplace_back(std::istream_iterator<std::string>(cells),
                      std::istream_iterator<std::string>());
  }
  return rows;
}

TEST(Cli, a_plan_is_a_row_a_server_and_a_last_one_of_max_over_mean) {
  const Words priced = joined(kLlama, {"plan.profile=h200"});
  const std::string out = plan(priced);
  EXPECT_THAT(out, AllOf(ContainsRegex("\nserver +time before +after +tokens +memory MiB"),
                         HasSubstr(" documents, 1,048,576 tokens on 8 workers, 8 servers\n"
                                   "layout balanced, scheduler balanced, tolerance 0.02: "),
                         HasSubstr("before: plain packing"), HasSubstr("\nvalid\n"),
                         Not(HasSubstr("tolerance missed")), Not(HasSubstr("of another shape"))));
  const auto rows = server_rows(out);
  ASSERT_EQ(rows.size(), 10u);
  const Json loads = Json::parse(plan(joined(priced, {"--json"}))).at("load");
  double before = 0, after = 0;
  for (size_t server = 0; server < 8; ++server) {
    const auto& row = rows[server + 1];
    ASSERT_EQ(row.size(), 7u);
    EXPECT_EQ(row[0], std::to_string(server));
    before = std::max(before, std::stod(row[1]));
    after = std::max(after, std::stod(row[2]));
    const Json& load = loads.at(server);
    const auto mib = [&](const char* one, const char* other) {
      return (load.at(one).get<double>() + load.at(other).get<double>()) / (1 << 20);
    };
    EXPECT_NEAR(std::stod(row[4]), load.at("memory_bytes").get<double>() / (1 << 20), 0.051);
    EXPECT_NEAR(std::stod(row[5]), mib("receive_bytes", "o_receive_bytes"), 0.051);
    EXPECT_NEAR(std::stod(row[6]), mib("send_bytes", "o_send_bytes"), 0.051);
  }
  EXPECT_EQ(rows[9][0], "max/mean");
  EXPECT_EQ(std::stod(rows[9][1]), before);
  EXPECT_EQ(std::stod(rows[9][2]), after);
  EXPECT_GT(before, 1.8);
  EXPECT_LE(after, 1.02);
  EXPECT_LE(std::stod(rows[9][3]), 1.001);
}

TEST(Cli, load_is_shown_over_each_servers_share) {
  const auto rows = server_rows(
      plan({"plan.tolerance=0.01", "servers.dedicated=1", "servers.capacity=0,1,1,1,1,1,1,2,1"}));
  ASSERT_EQ(rows.size(), 11u);
  EXPECT_EQ(rows[1][1], "inf");  // it has no share
  EXPECT_EQ(rows[1][2], "0.000");
  EXPECT_EQ(rows[9][3], "0");  // a dedicated server holds no tokens
  for (size_t server = 1; server < 9; ++server) {
    EXPECT_GT(std::stod(rows[server + 1][2]), 0.8);
    EXPECT_LE(std::stod(rows[server + 1][2]), 1.01);
  }
  EXPECT_EQ(rows[10][1], "inf");
}

TEST(Cli, an_automatic_tolerance_shows_what_it_weighed) {
  const auto options = [](const char* bandwidth, const char* overlap) -> Words {
    return joined(kLlama, {"plan.tolerance=auto", "batch.nano_batches=2",
                           std::string("plan.bandwidth_mb_per_s=") + bandwidth,
                           std::string("train.overlap=") + overlap});
  };
  const Json summary = plan_summary(options("1000000", "ping-pong")),
             weighed = summary.at("weighed");
  EXPECT_EQ(weighed.at(0).at("scheduler"), "local");
  EXPECT_NEAR(weighed.at(0).at("max_over_mean"), 1.856, 0.001);
  int chosen = 0;
  for (const Json& one : weighed) {
    EXPECT_GT(one.at("layer_ps"), one.at("exposed_ps"));
    if (!one.at("chosen").get<bool>()) continue;
    ++chosen;
    EXPECT_EQ(one.at("scheduler"), "balanced");
    EXPECT_EQ(one.at("tolerance"), summary.at("tolerance"));
    for (const Json& other : weighed) {  // the fastest, but that 5 per mille may save bytes
      EXPECT_LE(one.at("layer_ps").get<double>(), 1.005 * other.at("layer_ps").get<double>());
    }
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_THAT(plan(options("1", "none")), HasSubstr("scheduler local"));
  EXPECT_EQ(plan_summary(options("1", "none")).at("scheduler"), "local");
}

TEST(Cli, a_missed_tolerance_is_said_everywhere) {
  EXPECT_THAT(plan({"plan.scheduler=local"}), HasSubstr("\ntolerance missed: 1.85625 > 1.05\n"));
  EXPECT_EQ(plan_summary({"plan.scheduler=local"}).at("tolerance_met"), false);
  EXPECT_EQ(plan_summary({}).at("tolerance_met"), true);
  EXPECT_THAT(plan({"--compare"}), AllOf(ContainsRegex("\nlocal [^\n]* 1\\.856  no "),
                                         ContainsRegex("\nwlb [^\n]* 7\\.338  no "),
                                         ContainsRegex("\ngreedy [^\n]* 1\\.050  yes ")));
}

TEST(Cli, a_window_has_no_known_bound) {
  const Json json = plan_summary({"model.sliding_window=4096"});
  EXPECT_TRUE(json.at("lower_bound_bytes").is_null());
  EXPECT_EQ(json.at("shape").at("window_left"), 4095);
}

TEST(Cli, a_plan_is_the_one_that_the_library_makes) {
  PlanRequest request;
  request.nano_batch = read_workload(kWorkload).nano_batch;
  request.cluster = Cluster::in_place(8);
  request.shape = {.num_heads = 4, .num_kv_heads = 1};
  const Json made = Json::parse(plan_to_json(make_plan(request)));
  const Json shown = Json::parse(plan(joined(kLlama, {"--json"})));
  for (const char* name : {"layout", "tasks", "shape", "options", "document_lengths"})
    EXPECT_EQ(shown.at(name), made.at(name)) << name;
  EXPECT_EQ(shown.at("cluster").at("capacity"), made.at("cluster").at("capacity"));
}

TEST(Cli, a_profile_of_another_shape_is_said) {
  EXPECT_THAT(plan({"plan.profile=h200", "model.dtype=fp32"}),
              HasSubstr("\nthe profile is of another shape or type than the plan: "));
}

TEST_F(CliTest, predicted_times_of_a_plan_are_checked_with_its_profile_only) {
  const std::string file = in_folder("plan.json"), by_pairs = in_folder("pairs.json");
  plan({"plan.profile=h200", "--out", file});
  plan({"--out", by_pairs});
  EXPECT_THAT(run_distca({"plan", "--plan", file, "plan.profile=h200"}).out, EndsWith("\nvalid\n"));
  EXPECT_THAT(run_distca({"plan", "--plan", file}).out,
              EndsWith("\nvalid (time not checked: give plan.profile)\n"));
  EXPECT_THAT(run_distca({"plan", "--plan", by_pairs}).out, EndsWith("\nvalid\n"));
  EXPECT_THAT(refusal({"plan", "--plan", by_pairs, "plan.profile=h200"}),
              AllOf(HasSubstr(by_pairs), HasSubstr("priced by pairs"), HasSubstr("@")));
  std::string text = read_file(file);
  const size_t time = text.find("\"time_ns\":") + 10;
  text.replace(time, 1, text[time] == '1' ? "2" : "1");
  write_file_atomically(file, text);
  succeed({"plan", "--plan", file});
  EXPECT_THAT(refusal({"plan", "--plan", file, "plan.profile=h200"}),
              HasSubstr("not a valid plan"));
}

TEST(Cli, plan_compares_all_schedulers) {
  const std::string table = plan({"--compare"});
  expect_narrow(table);
  std::map<std::string, double> imbalance;
  for (const Json& row : Json::parse(plan({"--compare", "--json"}))) {
    const auto name = row.at("scheduler").get<std::string>();
    imbalance[name] = row.at("max_over_mean");
    EXPECT_THAT(table, HasSubstr("\n" + name));
  }
  EXPECT_EQ(imbalance.size(), 10u);
  EXPECT_LE(imbalance.at("balanced"), 1.02);
  EXPECT_GT(imbalance.at("local"), 1.8);
}

TEST(Cli, plan_compares_all_orders_of_a_pipeline) {
  const auto compared = [](const std::string& more) {
    return plan({"--compare", more, "parallel.pipeline_model_parallel_size=4",
                 "model.num_hidden_layers=8", "batch.nano_batches=8", "model.hidden_size=8192",
                 "model.intermediate_size=28672", "model.num_attention_heads=32",
                 "model.num_key_value_heads=8", "model.head_dim=128"});
  };
  const std::string table = compared("parallel.outstanding_weight_gradients=3");
  expect_narrow(table);
  EXPECT_THAT(table, ContainsRegex("\nmixed +3 "));
  std::map<std::pair<std::string, int>, Json> orders;
  const Json all = Json::parse(compared("--json"));
  for (const Json& row : all.at("orders"))
    orders[{row.at("pipeline_schedule"), row.at("outstanding_weight_gradients")}] = row;
  EXPECT_EQ(orders.size(), 9u);  // three schedules with 0, 1 and 2
  const auto step_ms = [&](const char* schedule, int outstanding) {
    return orders.at({schedule, outstanding}).at("step_ms").get<double>();
  };
  EXPECT_LT(step_ms("aligned", 2), step_ms("aligned", 0));
  EXPECT_LT(step_ms("aligned", 0), step_ms("1f1b", 0));
  for (const auto& [order, row] : orders)
    EXPECT_EQ(row.at("nano_batches_in_flight"), order.first == "1f1b" ? 4 : 8) << order.first;
}

TEST(Cli, what_is_refused_is_a_row_and_a_line) {
  EXPECT_THAT(plan({"--compare", "plan.max_tokens_per_worker=140000"}),
              AllOf(ContainsRegex("\nwlb refused\n"), ContainsRegex("\nlocal +sequential "),
                    HasSubstr("\nwlb on layout wlb: "), HasSubstr("140000")));
}

TEST(Cli, dedicated_servers_get_what_their_capacity_says) {
  const Json load =
      Json::parse(plan({"servers.dedicated=2", "servers.capacity=0,0,0,0,0,0,0,0,1,3", "--json"}))
          .at("load");
  for (int worker = 0; worker < 8; ++worker) EXPECT_EQ(load.at(worker).at("pairs"), 0);
  const double one = load.at(8).at("pairs"), three = load.at(9).at("pairs");
  EXPECT_NEAR(three / (one + three), 0.75, 0.02);
}

TEST_F(CliTest, plan_writes_the_same_bytes_to_a_file_as_to_stdout) {
  EXPECT_THAT(plan({"--out", in_folder("p.json")}),
              AllOf(HasSubstr("max/mean"), HasSubstr("valid")));
  EXPECT_EQ(read_file(folder_ / "p.json"), plan({"--json"}));
}

TEST(CliPlanProgram, is_printed_once_those_of_all_ranks_are_valid) {
  const Words two = {"batch.nano_batches=2", "model.num_hidden_layers=2"};
  EXPECT_THAT(plan(joined(two, {"--program", "7"})),
              AllOf(StartsWith("Rank 7 of 8, overlap ping-pong, nano-batches: 2, layers: 2; "),
                    HasSubstr("valid with the programs of all ranks\n"),
                    ContainsRegex("comm +backward layer 1 combine of nano-batch 1 .* tag [0-9]+, "
                                  "[0-9]+ bytes (to|from) "),
                    HasSubstr(" grad_reduce "), HasSubstr(": qkv_in, ")));
  EXPECT_THAT(
      plan(joined(two, {"servers.dedicated=1", "servers.capacity=0,0,0,0,0,0,0,0,1", "--program",
                        "8", "train.overlap=within", "exchange.keys=redispatch"})),
      AllOf(HasSubstr("(a dedicated server), overlap within"), HasSubstr(" redispatch "),
            Not(HasSubstr(" pre_attention "))));
}

TEST(CliPlanProgram, of_a_pipeline_is_of_the_ticks_that_the_plan_shows) {
  const Words pipeline = {"--workers",
                          "6",
                          "model.num_hidden_layers=5",
                          "parallel.pipeline_model_parallel_size=3",
                          "parallel.pipeline_layers=2,2,1",
                          "batch.nano_batches=4"};
  for (const SchedulerEntry& scheduler : schedulers()) {
    const Words words = joined(pipeline, {fmt::format("plan.scheduler={}", scheduler.name)});
    EXPECT_THAT(plan(words), AllOf(HasSubstr("3 stages x 2 replicas, 2 micro-batches of 2 "
                                             "nano-batches, overlap ping-pong: 4 ticks a pass\n"),
                                   HasSubstr("\n7     backward  1 of 3 ")))
        << scheduler.name;
    EXPECT_THAT(
        plan(joined(words, {"--program", "5"})),
        AllOf(StartsWith("Rank 5 of 6 (stage 2, layers 4 to 4), overlap ping-pong, nano-batches: "
                         "4, layers: 5; "),
              HasSubstr("valid with the programs of all ranks; at most 2 nano-batches in flight\n"),
              HasSubstr("forward p2p (receive) of nano-batch 0")))
        << scheduler.name;
  }
  EXPECT_THAT(
      plan(joined(pipeline, {"servers.dedicated=1", "--program", "6"})),
      AllOf(StartsWith("Rank 6 of 7 (a dedicated server), "), Not(HasSubstr(" pre_attention "))));
}

TEST(CliPlanProgram, is_what_the_page_shows) {
  const std::string page = read_file("docs/program.md");
  const Words words = {"--workers",
                       "2",
                       "servers.dedicated=1",
                       "servers.capacity=1,1,1",
                       "batch.nano_batches=2",
                       "model.num_hidden_layers=1",
                       "--program",
                       "0"};
  EXPECT_THAT(page, AllOf(HasSubstr(std::string("distca plan --workload ") + kWorkload + " \\\n"),
                          HasSubstr(fmt::format("        {}\n", fmt::join(words, " "))),
                          HasSubstr("```\n" + plan(words) + "```\n")));
}

}  // namespace
}  // namespace distca::testing
