// distca simulate: what a step of a training would take on a machine, predicted without running it.

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cli/asked_step.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/simulate_run.h"

namespace distca::cli {
namespace {

struct SimulateArguments : StepArguments {
  std::string machine = "h200";
  bool json = false;
};

struct PartRow {
  const char* name;
  double StepParts::*part;
};
constexpr std::array<PartRow, 7> kParts{{{"attention", &StepParts::attention},
                                         {"linear", &StepParts::linear},
                                         {"copies", &StepParts::copied},
                                         {"issues", &StepParts::issued},
                                         {"waits for peers", &StepParts::late},
                                         {"waits for bytes", &StepParts::exposed},
                                         {"idle at the end", &StepParts::idle}}};

std::string json_key(std::string name) {
  std::ranges::replace(name, ' ', '_');
  return name + "_s";
}

Json json_of(const SimulatedStep& step, const Machine& machine, int64_t number) {
  Json stages = Json::array(), better = Json::array();
  for (const SimulatedStage& stage : step.stages) {
    Json json{{"name", stage.name},
              {"peak_bytes", std::llround(stage.peak.total())},
              {"peak_rank", stage.peak_rank}};
    for (const PartRow& row : kParts) json[json_key(row.name)] = stage.mean.*row.part;
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
          {"tokens_per_s", step.tokens_per_s},
          {"share_of_peak", step.share_of_peak},
          {"busy_s", step.busy_s},
          {"even_attention_s", step.even_attention_s},
          {"stages", std::move(stages)},
          {"better_by_a_fifth", std::move(better)}};
}

void print_stages(const SimulatedStep& step, const Machine& machine) {
  Table table([] {
    std::vector<std::string> header = {"% of the step, mean of ranks"};
    for (const PartRow& row : kParts) header.push_back(row.name);
    header.push_back("peak GiB");
    return header;
  }());
  for (const SimulatedStage& stage : step.stages) {
    std::vector<std::string> cells = {stage.name};
    for (const PartRow& row : kParts)
      cells.push_back(fmt::format("{:.1f}", 100 * stage.mean.*row.part / step.seconds));
    cells.push_back(fmt::format("{:.2f}", stage.peak.total() / 0x1p30));
    table.add_row(std::move(cells));
  }
  fmt::print("\n{}", table.to_string());
  const double memory = machine.of(MachineNumber::kMemoryGib) * 0x1p30;
  for (const SimulatedStage& stage : step.stages) {
    if (stage.peak.total() <= memory) continue;
    fmt::print("{} does not fit: rank {} needs {:.2f} GiB, the machine has {:g}, in {}\n",
               stage.name, stage.peak_rank, stage.peak.total() / 0x1p30,
               machine.of(MachineNumber::kMemoryGib), stage.peak.where);
  }
}

void print_for_people(const Config& config, const AskedStep& asked, int64_t number,
                      const SimulatedStep& step, const Machine& machine) {
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
  print_stages(step, machine);
  Table table({"if better by 20 %", "value", "step shorter by", "from"});
  for (const Sensitivity& one : step.sensitivities) {
    const Machine::Number& of = machine.numbers[static_cast<size_t>(one.number)];
    table.add_row({machine_number_name(one.number), fmt::format("{:g}", of.value),
                   fmt::format("{:.1f} %", 100 * one.shorter), of.source});
  }
  fmt::print("\n{}", table.to_string());
  if (step.one_of_each_server)
    fmt::print("\nRanks that divide layers are alike: the first of each server was played.\n");
}

void simulate(const SimulateArguments& asked) {
  const Config config = load_config(asked.config, asked.overrides);
  const Machine machine = machine_by_name(asked.machine);
  say_notes(config.notes);
  const AskedStep step = asked_step(config, asked);
  check_sizes_of(config, step);
  const SimulatedStep simulated = simulate_step(config, step.batch, step.workers, machine);
  if (asked.json) return fmt::print("{}", canonical_json(json_of(simulated, machine, asked.step)));
  print_for_people(config, step, asked.step, simulated, machine);
}

}  // namespace

void add_simulate(CLI::App& app) {
  auto asked = std::make_shared<SimulateArguments>();
  CLI::App* verb = app.add_subcommand(
      "simulate", "What a step of a training would take on a machine, without running it");
  add_step_options(*verb, *asked);
  verb->add_option("--machine", asked->machine,
                   "h100, h200 or the file of a machine (docs/simulator.md)")
      ->type_name("NAME|FILE")
      ->capture_default_str();
  verb->add_flag("--json", asked->json, "Print one JSON object");
  verb->footer(
      "With --config and KEY=VALUE as for distca train, it plays the plans of that run.\n"
      "Example:  distca simulate --config configs/gpu_8_nodes.toml --lengths lengths.json "
      "--workers 64");
  verb->callback([asked] { simulate(*asked); });
}

}  // namespace distca::cli
