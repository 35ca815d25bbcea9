#include "bench/recorded_testing.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "bench/recorded_lines_testing.h"
#include "distca/base/error.h"
#include "distca/base/statistics.h"

namespace distca::bench {

std::vector<Json> RecordedBlock::rounds_of(const std::string& arm) const {
  std::vector<Json> rounds;
  for (const Json& line : lines) {
    if (line["line"] == "round" && line["arms"].contains(arm)) rounds.push_back(line);
  }
  return rounds;
}

double RecordedBlock::median_of(const std::string& arm, const char* figure) const {
  std::vector<double> values;
  for (const Json& round : rounds_of(arm)) values.push_back(round["arms"][arm][figure]);
  return median(values);
}

std::vector<RecordedBlock> recorded_blocks(const std::filesystem::path& path,
                                           const std::string& head) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorKind::kData, "{} cannot be read", path.string());
  std::vector<RecordedBlock> blocks;
  std::vector<Json> before;
  for (std::string text; std::getline(file, text);) {
    Json line = parse_json(text, path.string());
    if (line["line"] == head) {
      blocks.push_back({.head = std::move(line), .before = std::exchange(before, {}), .lines = {}});
      continue;
    }
    before.push_back(line);
    if (!blocks.empty()) blocks.back().lines.push_back(std::move(line));
  }
  return blocks;
}

ThreadRates assumed_rates() {
  return {.issue_ps = 60'000'000,
          .copy_bytes_per_s = 4'000'000'000,
          .core_bytes_per_s = 11'000'000'000};
}

Wire assumed_wire(int64_t bytes_per_s, int64_t burst_bytes) {
  return {.between = {
              .latency_ps = 75'000'000, .bytes_per_s = bytes_per_s, .burst_bytes = burst_bytes}};
}

Wire loopback() { return assumed_wire(4'000'000'000); }

int64_t recorded_burst(double mb_per_s) {
  return std::max<int64_t>(72 << 10, static_cast<int64_t>(mb_per_s * 1e6) / 1000);
}

double seconds_of(const std::vector<Program>& programs, const OpPrices& prices, const Wire& wire) {
  return 1e-12 * static_cast<double>(timed_step(programs, prices, wire).length_ps);
}

std::vector<RecordedStep> recorded_steps(const std::filesystem::path& root) {
  std::vector<RecordedStep> all;
  const auto add = [&](std::vector<RecordedStep> steps) {
    all.insert(all.end(), steps.begin(), steps.end());
  };
  add(recorded_paced(root / "bench/results/pipeline_paced_epyc_2026-11-23.jsonl"));
  add(recorded_paced(root / "bench/results/pipeline_paced_060_xeon_2026-11-24.jsonl"));
  add(recorded_wire(root / "bench/results/pipeline_wire_epyc_2026-11-23.jsonl"));
  add(recorded_real(root / "bench/results/pipeline_real_xeon_2026-11-24.jsonl"));
  add(recorded_real(root / "bench/results/pipeline_real_near_025_xeon_2026-11-24.jsonl"));
  add(recorded_overlap(root / "bench/results/overlap_epyc_2026-11-21.md"));
  add(recorded_training(root / "bench/results/training_epyc_2026-11-24.jsonl",
                        root / "bench/results/training_epyc_2026-11-24_lengths.jsonl"));
  return all;
}

}  // namespace distca::bench
