// Ranks compare hashes of plans that each made for itself: every compiler, build type and machine
// has to make the same. A change of the planner changes these values, and only that. To write them
// anew:  build/core/bench/plan_hashes > distca/plan/testdata/plan_hashes.txt
// To compare compilers and build types:  make determinism

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "distca/plan/plan_variants_testing.h"

namespace distca {
namespace {

using ::testing::Contains;
using ::testing::SizeIs;

std::set<std::string> pinned_lines() {
  std::ifstream file("distca/plan/testdata/plan_hashes.txt");
  std::set<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.insert(line);
  return lines;
}

TEST(PlanHashes, every_build_and_machine_makes_these_plans) {
  const std::set<std::string> pinned = pinned_lines();
  for (testing::NamedRequest& named : testing::pinned_requests("distca/plan/testdata/workloads")) {
    if (named.request.cluster.num_servers() > 64) continue;  // slow in a debug build
    for (const PlanOptions& options : testing::plan_variants()) {
      named.request.options = options;
      const std::string line = testing::hash_line(named);
      EXPECT_TRUE(pinned.contains(line)) << line << ": not pinned, see the top of this file";
    }
  }
}

TEST(PlanHashes, every_scheduler_and_layout_is_pinned) {
  std::vector<std::string> variants;
  for (const PlanOptions& options : testing::plan_variants())
    variants.push_back(testing::variant_name(options));
  for (const SchedulerEntry& scheduler : schedulers()) {
    EXPECT_THAT(
        variants,
        Contains(::testing::StartsWith(fmt::format("{}/{}", scheduler.name, scheduler.layout))));
  }
  for (const LayoutEntry& layout : layouts()) {
    EXPECT_THAT(variants, Contains(::testing::HasSubstr(fmt::format("/{}", layout.name))));
  }
  EXPECT_THAT(pinned_lines(), SizeIs(variants.size() * 6));
}

}  // namespace
}  // namespace distca
