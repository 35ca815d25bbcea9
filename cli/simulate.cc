// distca simulate: what a step of a training would take on a machine, predicted without running it.

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/asked_step.h"
#include "cli/find_best.h"
#include "cli/options.h"
#include "cli/paper.h"
#include "cli/plan_file.h"
#include "cli/verbs.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/simulate_run.h"

namespace distca::cli {
namespace {

struct SimulateArguments : StepArguments {
  std::string machine = "h200";
  std::string trace, out;  // files. Empty means not given.
  bool finds_best = false;
  FindBestArguments find;
  PaperArguments paper;
  std::vector<std::string> slow_ranks;  // "RANK=SPEED"
  bool prints_machine = false, json = false;
};

std::string json_key(std::string name) {
  std::ranges::replace(name, ' ', '_');
  return name + "_s";
}

/// A list of them is read at a glance, and drawn on any width of a page.
constexpr size_t kMostMemoryPoints = 200;

double ms_of(int64_t picoseconds) { return 1e-9 * static_cast<double>(picoseconds); }

/// [[ms, bytes], ...]
Json json_of(const std::vector<MemoryPoint>& points) {
  Json json = Json::array();
  for (const MemoryPoint& point : thinned(points, kMostMemoryPoints))
    json.push_back(Json::array({ms_of(point.at_ps), std::llround(point.bytes)}));
  return json;
}

using SlowRanks = std::map<int, double>;  // rank: its share of the machine's rates

/// "rank 1 at 0.7, rank 3 at 0.9"
std::string slow_text(const SlowRanks& slow) {
  std::vector<std::string> texts;
  for (const auto& [rank, speed] : slow)
    texts.push_back(fmt::format("rank {} at {:g}", rank, speed));
  return fmt::format("{}", fmt::join(texts, ", "));
}

Json json_of(const SimulatedStep& step, const Machine& machine, int64_t number, int ranks,
             const SlowRanks& slow) {
  Json slow_ranks = Json::object();
  for (const auto& [rank, speed] : slow) slow_ranks[std::to_string(rank)] = speed;
  Json stages = Json::array(), better = Json::array();
  for (const SimulatedStage& stage : step.stages) {
    Json json{{"name", stage.name},           {"peak_bytes", std::llround(stage.peak.total())},
              {"peak_rank", stage.peak_rank}, {"peak_at_ms", ms_of(highest(stage.memory).at_ps)},
              {"peak_in", stage.peak.where},  {"memory", json_of(stage.memory)}};
    for (const auto& [name, part] : kStepParts) json[json_key(name)] = stage.mean.*part;
    stages.push_back(std::move(json));
  }
  for (const Sensitivity& one : step.sensitivities) {
    better.push_back({{"number", machine_number_name(one.number)},
                      {"step_shorter", one.shorter},
                      {"source", machine.numbers[static_cast<size_t>(one.number)].source}});
  }
  return {{"step", number},
          {"machine", machine.name},
          {"plan_hash", fmt::format("{:016x}", step.figures.hash)},
          {"step_s", step.seconds},
          {"ranks", ranks},
          {"slow_ranks", std::move(slow_ranks)},
          {"load_before", step.figures.load_before},
          {"load_after", step.figures.load_after},
          {"imbalance_before", step.figures.imbalance_before},
          {"imbalance_after", step.figures.imbalance_after},
          {"tokens_per_s", step.tokens_per_s},
          {"share_of_peak", step.share_of_peak},
          {"busy_s", step.busy_s},
          {"even_attention_s", step.even_attention_s},
          {"plain_packing_s", step.plain_packing_s > 0 ? Json(step.plain_packing_s) : Json()},
          {"last_check", machine.check.measured_s > 0 ? Json(machine.check.error()) : Json()},
          {"stages", std::move(stages)},
          {"better_by_a_fifth", std::move(better)}};
}

void print_memory(const SimulatedStep& step) {
  Table table({"most memory of a rank", "rank", "bytes", "at ms", "in"});
  for (const SimulatedStage& stage : step.stages) {
    table.add_row({stage.name, std::to_string(stage.peak_rank),
                   with_thousands(std::llround(stage.peak.total())),
                   fmt::format("{:.3f}", ms_of(highest(stage.memory).at_ps)), stage.peak.where});
  }
  fmt::print("\n{}", table.to_string());
}

void print_stages(const SimulatedStep& step, const Machine& machine) {
  Table table([] {
    std::vector<std::string> header = {"% of the step, mean of ranks"};
    for (const StepPart& part : kStepParts) header.push_back(part.name);
    header.push_back("peak GiB");
    return header;
  }());
  for (const SimulatedStage& stage : step.stages) {
    std::vector<std::string> cells = {stage.name};
    for (const auto& [_, part] : kStepParts)
      cells.push_back(fmt::format("{:.1f}", 100 * stage.mean.*part / step.seconds));
    cells.push_back(fmt::format("{:.2f}", stage.peak.total() / 0x1p30));
    table.add_row(std::move(cells));
  }
  fmt::print("\n{}", table.to_string());
  print_memory(step);
  const double memory = machine.of(MachineNumber::kMemoryGib) * 0x1p30;
  for (const SimulatedStage& stage : step.stages) {
    if (stage.peak.total() <= memory) continue;
    fmt::print("{} does not fit: rank {} needs {:.2f} GiB, the machine has {:g}, in {}\n",
               stage.name, stage.peak_rank, stage.peak.total() / 0x1p30,
               machine.of(MachineNumber::kMemoryGib), stage.peak.where);
  }
}

void print_for_people(const Config& config, const AskedStep& asked, int64_t number,
                      const SimulatedStep& step, const Machine& machine, const SlowRanks& slow) {
  fmt::print(
      "Step {} of {}: {} nano-batch{} of {} tokens on {}, machine {}\n"
      "plan hash {:016x}, as plan_hash in metrics.jsonl\n{}\n"
      "predicted    {:.4f} s a step, {} tokens/s, {:.1f} % of the peak\n"
      "bounds       {:.4f} s if no rank ever waited, {:.4f} s if only core attention were even\n",
      number, config.train.steps, asked.batch.size(), asked.batch.size() == 1 ? "" : "es",
      with_thousands(asked.batch.front().nano_batch.num_tokens()),
      run_grid(config, asked.workers).describe(), machine.name, step.figures.hash, asked.notes,
      step.seconds, with_thousands(std::llround(step.tokens_per_s)), 100 * step.share_of_peak,
      step.busy_s, step.even_attention_s);
  if (!slow.empty())
    fmt::print(
        "slow         {} of the machine's rates; plans know it with servers.reweight alone\n",
        slow_text(slow));
  if (machine.check.measured_s > 0) {
    fmt::print("prices        as of their last check, a step is predicted {:+.1f} % off\n",
               100 * machine.check.error());
  }
  if (step.plain_packing_s > 0) {
    fmt::print("plain packing {:.4f} s a step, {:.2f} times as long (plan.scheduler=local)\n",
               step.plain_packing_s, step.plain_packing_s / step.seconds);
  }
  print_stages(step, machine);
  Table table({"if better by 20 %", "value", "step shorter by", "from"});
  for (const Sensitivity& one : step.sensitivities) {
    const Machine::Number& of = machine.numbers[static_cast<size_t>(one.number)];
    table.add_row({machine_number_name(one.number), fmt::format("{:g}", of.value),
                   fmt::format("{:.1f} %", 100 * one.shorter), of.source});
  }
  fmt::print("\n{}", table.to_string());
  if (step.one_of_each_server)
    fmt::print("\nRanks that divide layers do the same: the first of each server was played.\n");
}

/// The file of --trace or --out. It is opened before the step is planned, and appears once it is
/// whole. Folders that were made for it are removed if it does not.
struct ResultFile {
  MissingFolders missing;
  AtomicFile file;
};

/// Null without a path. Throws Error(kUsage) if the file cannot be written.
std::unique_ptr<ResultFile> result_file(const char* option, const std::string& path) {
  if (path.empty()) return nullptr;
  try {
    const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
    return std::unique_ptr<ResultFile>(new ResultFile{MissingFolders(folder), AtomicFile(path)});
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, "{}: {}", option, error.what());
  }
}

/// Says where the trace is, as `distca train` does, and of which ranks it is if not of all.
void print_trace(const std::string& file, const SimulatedStep& step) {
  fmt::print("\ntrace        {0}: distca trace {0}, or ui.perfetto.dev\n", file);
  if (step.is_trace_shortened) {
    fmt::print(
        "All ranks would be more than {} lines, so it has of each stage the one that computes "
        "longest: {}\n",
        with_thousands(kMostTraceLines), fmt::join(step.traced_ranks, ", "));
  }
}

/// [rank] The share of the machine's rates that it has. Throws Error(kUsage).
SlowRanks slow_ranks_of(const std::vector<std::string>& words, int ranks) {
  SlowRanks slow;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    int rank = -1;
    double speed = 0;
    const bool is_pair = equals != std::string::npos &&
                         CLI::detail::lexical_cast(word.substr(0, equals), rank) &&
                         CLI::detail::lexical_cast(word.substr(equals + 1), speed);
    DISTCA_THROW_IF(!is_pair || !(speed >= 0.01 && speed <= 1), ErrorKind::kUsage,
                    "--slow {}: it is not RANK=SPEED with a speed in 0.01 .. 1, such as 3=0.7",
                    word);
    DISTCA_THROW_IF(rank < 0 || rank >= ranks, ErrorKind::kUsage,
                    "--slow {}: the run has ranks 0 to {}", word, ranks - 1);
    DISTCA_THROW_IF(!slow.emplace(rank, speed).second, ErrorKind::kUsage,
                    "--slow {}: rank {} has a speed already", word, rank);
  }
  return slow;
}

/// Throws Error(kUsage) if a word is given that `why` lets be ignored.
void refuse(bool is_given, const std::string& word, const std::string& why) {
  DISTCA_THROW_IF(is_given, ErrorKind::kUsage, "{}, so {} would be ignored", why, word);
}
void refuse(const std::vector<CLI::Option*>& others, const std::string& why) {
  for (const CLI::Option* other : others) refuse(other->count() > 0, other->get_name(), why);
}

void simulate(const SimulateArguments& asked) {
  if (!asked.paper.experiment.empty())
    return play_paper(asked.paper, asked.lengths, machine_by_name(asked.machine));
  const Config config = load_config(asked.config, asked.overrides);
  const Machine machine = machine_by_name(asked.machine);
  if (asked.prints_machine) return fmt::print("{}", machine_to_json(machine));
  DISTCA_THROW_IF(!asked.trace.empty() && !asked.out.empty() &&
                      std::filesystem::absolute(asked.trace).lexically_normal() ==
                          std::filesystem::absolute(asked.out).lexically_normal(),
                  ErrorKind::kUsage, "--trace and --out both name {}", asked.trace);
  const auto trace = result_file("--trace", asked.trace), out = result_file("--out", asked.out);
  say_notes(config.notes);
  const auto keep = [&](const std::string& json) {
    if (!out) return;
    out->file.write(json);
    out->file.commit();
  };
  if (asked.finds_best)
    return keep(find_best_setting(asked, config, machine, asked.find, asked.json));
  const auto of_node = static_cast<int64_t>(machine.of(MachineNumber::kRanksPerNode));
  DISTCA_THROW_IF(
      config.cluster.ranks_per_node > 0 && config.cluster.ranks_per_node != of_node,
      ErrorKind::kConfig,
      "cluster.ranks_per_node = {}, and a node of machine {} has {} ranks: leave out the key, or "
      "give a machine of such nodes",
      config.cluster.ranks_per_node, machine.name, of_node);
  const AskedStep step = asked_step(config, asked);
  const int ranks = run_grid(config, step.workers).num_ranks();
  const SlowRanks slow = slow_ranks_of(asked.slow_ranks, ranks);
  const TraceRequest request{.step = asked.step,
                             .write = [&](std::string_view part) { trace->file.write(part); }};
  const SimulatedStep simulated = simulate_step(config, step.batch, step.workers, machine,
                                                {.is_first_step = asked.step == 1,
                                                 .memory_over_time = true,
                                                 .slow_ranks = slow,
                                                 .trace = trace ? &request : nullptr});
  if (trace) trace->file.commit();
  const std::string json = canonical_json(json_of(simulated, machine, asked.step, ranks, slow));
  keep(json);
  const std::vector<std::string>& stated = known_machines();
  if (!config.on_cuda() && std::ranges::find(stated, machine.name) != stated.end()) {
    say_notes(
        {{fmt::format("machine {} is of GPUs, and train.device = cpu; `distca profile "
                      "--machine` measures this computer for --machine FILE",
                      machine.name)}});
  }
  if (asked.json) return fmt::print("{}", json);
  print_for_people(config, step, asked.step, simulated, machine, slow);
  if (trace) print_trace(asked.trace, simulated);
}

/// The options of --find-best, which excludes others.
CLI::Option* add_find_best(CLI::App& verb, SimulateArguments& asked,
                           const std::vector<CLI::Option*>& of_step,
                           std::initializer_list<CLI::Option*> others) {
  CLI::Option* find_best = verb.add_flag(
      "--find-best", asked.finds_best,
      "Find the settings with the shortest step: tensor parallelism, stages, nano-batches, order "
      "and recomputation, for ours and for its rivals; the configuration says the rest");
  CLI::Option* gpus =
      number(verb, "--gpus", asked.find.gpus, 1, kMostServers, "GPUs that --find-best divides");
  verb.add_option("--rivals", asked.find.rivals,
                  "The rivals of --find-best, such as wlb,local, or none; default: all")
      ->delimiter(',')
      ->allow_extra_args(false)  // a KEY=VALUE follows
      ->type_name("NAME,...")
      ->needs(find_best);
  find_best->needs(gpus);
  gpus->needs(find_best);
  for (CLI::Option* other : others) find_best->excludes(other);
  for (CLI::Option* other : of_step) {
    if (other->check_name("--workers") || other->check_name("--workload"))
      find_best->excludes(other);
  }
  return find_best;
}

}  // namespace

void add_simulate(CLI::App& app) {
  auto asked = std::make_shared<SimulateArguments>();
  CLI::App* verb = app.add_subcommand(
      "simulate", "What a step of a training would take on a machine, without running it");
  const std::vector<CLI::Option*> of_step = add_step_options(*verb, *asked);
  verb->add_option("--machine", asked->machine,
                   "h100, h200 or the file of a machine (docs/simulator.md)")
      ->type_name("NAME|FILE")
      ->capture_default_str();
  CLI::Option* trace =
      verb->add_option("--trace", asked->trace,
                       "Write the predicted step as a trace, for distca trace and Perfetto")
          ->type_name("FILE");
  CLI::Option* slow =
      verb->add_option("--slow", asked->slow_ranks,
                       "A rank that computes at a share of the machine's rates, such as 3=0.7")
          ->type_name("RANK=SPEED");
  slow->allow_extra_args(false);  // a KEY=VALUE follows
  CLI::Option* find_best = add_find_best(*verb, *asked, of_step, {trace, slow});
  CLI::Option* json = verb->add_flag("--json", asked->json, "Print one JSON object");
  CLI::Option* out = verb->add_option("--out", asked->out, "Also write the JSON object to a file")
                         ->type_name("FILE");
  CLI::Option* print_machine =
      verb->add_flag("--print-machine", asked->prints_machine,
                     "Print the file of the machine instead, to change numbers in it");
  std::vector<CLI::Option*> not_of_machine = of_step;  // excludes() would make help too wide
  not_of_machine.insert(not_of_machine.begin(), {trace, slow, find_best, json, out});
  CLI::Option* paper =
      verb->add_option("--paper", asked->paper.experiment,
                       "Play an experiment of the paper instead, beside what it publishes; "
                       "--lengths is then the folder of lengths_pretrain.json and "
                       "lengths_prolong.json")
          ->check(CLI::IsMember(std::vector<std::string>(std::begin(kPaperExperiments),
                                                         std::end(kPaperExperiments))));
  verb->add_option("--rows", asked->paper.rows, "Rows of --paper whose name has this, such as 34B")
      ->type_name("TEXT")
      ->needs(paper);
  number(*verb, "--batches", asked->paper.batches, 1, 30, "Batches of each row of --paper")
      ->needs(paper);
  std::vector<CLI::Option*> not_of_paper = not_of_machine;
  not_of_paper.push_back(print_machine);
  std::erase_if(not_of_paper, [](const auto* option) { return option->check_name("--lengths"); });
  verb->footer(
      "With --config and KEY=VALUE as for distca train, it plays the plans of that run.\n"
      "The best setting:  distca simulate --config FILE --lengths FILE --find-best --gpus 64\n"
      "Example:  distca simulate --config configs/gpu_8_nodes.toml --lengths lengths.json "
      "--workers 64");
  verb->callback([asked, not_of_paper, not_of_machine] {
    if (asked->prints_machine) refuse(not_of_machine, "--print-machine prints a machine");
    if (const std::string& experiment = asked->paper.experiment; !experiment.empty()) {
      const std::string why = fmt::format("--paper {}: its rows say all", experiment);
      refuse(not_of_paper, why);
      for (const std::string& word : asked->overrides) refuse(true, word, why);
    }
    simulate(*asked);
  });
}

}  // namespace distca::cli
