#pragma once
// Lists from which the parity tests of pipelines and of tensor parallelism make their cases, and
// the table of what they have seen.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "distca/base/text.h"
#include "distca/program/overlap.h"
#include "tests/pipeline_parity_testing.h"

namespace distca::parity {

/// Orders, and how many dedicated servers: nobody would send these anything at home.
struct Placement {
  const char* name;
  testing::Order order;
  int dedicated;
};
inline constexpr std::array<Placement, 5> kPlacements{
    {{"aligned", testing::Order::kAligned, 0},
     {"aligned_dedicated", testing::Order::kAligned, 1},
     {"mixed", testing::Order::kMixed, 0},
     {"mixed_dedicated", testing::Order::kMixed, 1},
     {"at_home", testing::Order::kAtHome, 0}}};
/// Lines of planners().
inline constexpr std::array kPlanners{"balanced", "balanced_keys", "balanced_spread", "greedy",
                                      "local",    "wlb",           "per_document_cp"};
inline constexpr std::array<const char*, 3> kRecomputeNames{"kept", "selective", "full"};
inline constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kFull};

/// The name of a line of kOverlaps, as a part of a test's.
inline std::string overlap_part(int overlap) {
  std::string name(overlap_name(kOverlaps[overlap].overlap));
  std::ranges::replace(name, '-', '_');
  return name;
}

/// The largest differences from one worker, by grid, which are printed in the end.
class SeenDifferences {
 public:
  /// Expects a run to equal that of one worker to 1e-10: loss, norm, gradients unless ZeRO-1 leaves
  /// them where they were added, and weights after an update.
  void expect_same(const std::string& grid, const PipelineOutcome& many, const PipelineOutcome& one,
                   bool has_gradients) {
    EXPECT_LE(std::abs(many.norm - one.norm), 1e-10 * one.norm);
    Outcome of_one = one.step;
    if (!has_gradients) of_one.gradients.clear();
    parity::expect_same(many.step, of_one, 1e-10, 1e-12, "step");
    const Outcome weights{.loss = 1, .gradients = many.weights},
        want{.loss = 1, .gradients = one.weights};
    parity::expect_same(weights, want, 1e-10, 1e-12, "weights");
    Seen& seen = seen_[grid];
    ++seen.steps;
    seen.step = std::max({seen.step, largest_difference(many.step, of_one),
                          std::abs(many.norm - one.norm) / one.norm});
    seen.weights = std::max(seen.weights, largest_difference(weights, want));
  }
  void print() const {
    Table table({"grid", "steps", "largest difference", "of weights"});
    for (const auto& [grid, seen] : seen_) {
      table.add_row({grid, std::to_string(seen.steps), fmt::format("{:.2g}", seen.step),
                     fmt::format("{:.2g}", seen.weights)});
    }
    fmt::print("{}", table.to_string());
  }

 private:
  struct Seen {
    int steps = 0;
    double step = 0, weights = 0;
  };
  std::map<std::string, Seen> seen_;  // [grid]
};

}  // namespace distca::parity
