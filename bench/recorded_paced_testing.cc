#include "bench/recorded_testing.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/paced_step_testing.h"
#include "bench/recorded_lines_testing.h"

namespace distca::bench {
double paced_seconds(const PacedStep& step, const Wire& wire, double late_s) {
  const std::vector<Program> programs = step.programs();
  double sleeps = 0;  // the most of any rank
  for (const Program& program : programs) {
    double own = 0;
    for (const Op& op : program.ops) own += op.stream == Stream::kCompute ? 1 : 0;
    sleeps = std::max(sleeps, own);
  }
  const RatePrices prices(
      [&](int rank, const Op& op) {
        const double price = step.seconds(rank, op);
        return price > 0 ? price + late_s / sleeps : 0;
      },
      {.issue_ps = assumed_rates().issue_ps});
  return seconds_of(programs, prices, wire);
}

std::vector<RecordedStep> recorded_paced(const std::filesystem::path& path) {
  std::vector<RecordedStep> steps;
  for (const RecordedBlock& block : recorded_blocks(path, "setting")) {
    const Json& of = block.head;
    const PacedSetting setting{.stages = of["stages"],
                               .replicas = of["replicas"],
                               .micro_batches = of["micro_batches"],
                               .attention_share = of["attention_share"],
                               .layers = of["layers"],
                               .tokens = of["tokens"],
                               .linear_s = of["linear_s"]};
    for (size_t arm = 0; arm < kPipelineArms.size(); ++arm) {
      const std::string name = kPipelineArms[arm];
      if (block.rounds_of(name).empty()) continue;
      const PacedStep step(setting, static_cast<PipelineArm>(arm));
      steps.push_back(
          {.name = fmt::format("pipeline paced: {}: {}", setting.name(), name),
           .measured_s = block.median_of(name, "s"),
           .predicted_s = paced_seconds(step, loopback(), block.median_of(name, "late_s"))});
    }
  }
  return steps;
}

std::vector<RecordedStep> recorded_wire(const std::filesystem::path& path) {
  std::vector<RecordedStep> steps;
  for (const RecordedBlock& block : recorded_blocks(path, "wire")) {
    const double rate = block.head["bytes_per_s"];
    PacedSetting setting{.stages = 2,
                         .micro_batches = 4,
                         .attention_share = 0.4,
                         .head_dim = block.head["head_dim"],
                         .bytes_per_us = static_cast<int64_t>(1e-6 * rate)};
    const std::string of = fmt::format("{:g} MB/s", block.head["mb_per_s"].get<double>());
    const int64_t burst = recorded_burst(block.head["mb_per_s"]);
    const auto add = [&](const std::string& arm, const PacedSetting& played, bool is_cut) {
      const Wire wire = is_cut ? assumed_wire(0) : assumed_wire(static_cast<int64_t>(rate), burst);
      steps.push_back({.name = fmt::format("pipeline wire: {}: {}", of, arm),
                       .measured_s = block.median_of(arm, "s"),
                       .predicted_s = paced_seconds(PacedStep(played, PipelineArm::kWholeEven),
                                                    wire, block.median_of(arm, "late_s"))});
    };
    add("whole", setting, false);
    add("one byte", setting, true);
    PacedSetting other = setting;
    other.bytes_per_us = 0;
    add("not weighed", other, false);
    other = setting;
    other.fill_ticks = FillTicks::kSpread;
    add("fill_ticks = spread", other, false);
  }
  return steps;
}

}  // namespace distca::bench
