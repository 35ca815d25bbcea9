#include "bench/plan_sample.h"

#include <algorithm>

#include "distca/base/statistics.h"
#include "distca/plan/sample_workloads.h"

namespace distca::bench {
namespace {

/// What one variant reached, nano-batch by nano-batch.
struct Reached {
  std::vector<double> bytes, send, receive, of_bound, max_over_mean;
  size_t refused = 0;
  size_t violations = 0;

  void add(const Measured& measured, const Measured& original) {
    if (!measured.refusal.empty()) {
      ++refused;
      return;
    }
    const Shares found = shares(measured, original);
    bytes.push_back(found.bytes);
    send.push_back(found.send);
    receive.push_back(found.receive);
    if (measured.lower_bound_bytes > 0)
      of_bound.push_back(share(measured.bytes, measured.lower_bound_bytes));
    max_over_mean.push_back(measured.summary.max_over_mean);
    violations += measured.violations;
  }
  void add(const Reached& other) {
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(bytes, other.bytes);
    append(send, other.send);
    append(receive, other.receive);
    append(of_bound, other.of_bound);
    append(max_over_mean, other.max_over_mean);
    refused += other.refused;
    violations += other.violations;
  }
};

double worst(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

SampleRow row_of(const std::string& source, int servers, size_t variant, const Reached& reached) {
  return {.source = source,
          .servers = servers,
          .variant = variant,
          .planned = reached.bytes.size(),
          .refused = reached.refused,
          .median = {median(reached.bytes), median(reached.send), median(reached.receive)},
          .worst = {worst(reached.bytes), worst(reached.send), worst(reached.receive)},
          .median_of_bound = median(reached.of_bound),
          .worst_max_over_mean = worst(reached.max_over_mean),
          .violations = reached.violations};
}

}  // namespace

std::vector<SampleRow> measure_sample(const std::filesystem::path& folder, int count, uint64_t seed,
                                      const std::vector<Variant>& variants) {
  const std::pair<SampleKind, std::vector<int64_t>> sources[] = {
      {SampleKind::kPretrain, read_lengths(folder / "lengths_pretrain.json")},
      {SampleKind::kProlong, read_lengths(folder / "lengths_prolong.json")}};
  std::vector<SampleRow> rows;
  for (const int servers : {8, 64, 512}) {
    std::vector<Reached> both(variants.size());
    for (const auto& [kind, lengths] : sources) {
      const auto workloads =
          sample_workloads(lengths, {.kind = kind, .count = count, .ranks = servers, .seed = seed});
      std::vector<Reached> reached(variants.size());
      for (const Workload& workload : workloads) {
        const Measured denominator = measure_original(workload);
        for (size_t i = 0; i < variants.size(); ++i)
          reached[i].add(measure(workload, variants[i].options, 0), denominator);
      }
      for (size_t i = 0; i < variants.size(); ++i) {
        rows.push_back(row_of(workloads[0].source, servers, i, reached[i]));
        both[i].add(reached[i]);
      }
    }
    for (size_t i = 0; i < variants.size(); ++i)
      rows.push_back(row_of("both", servers, i, both[i]));
  }
  return rows;
}

}  // namespace distca::bench
