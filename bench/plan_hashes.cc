// Prints the hash of the plan of every scheduler and layout for each pinned request: the contents
// of distca/plan/testdata/plan_hashes.txt, the same from every compiler and build type
// (scripts/determinism.sh).

#include <cstdio>

#include "bench/main.h"
#include "distca/plan/plan_variants_testing.h"

int main() {
  return distca::bench::run_benchmark("bench/plan_hashes", [] {
    for (auto& named : distca::testing::pinned_requests(DISTCA_WORKLOADS)) {
      for (const distca::PlanOptions& options : distca::testing::plan_variants()) {
        named.request.options = options;
        std::printf("%s\n", distca::testing::hash_line(named).c_str());
      }
    }
    return 0;
  });
}
