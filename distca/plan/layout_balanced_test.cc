#include "distca/plan/layout_balanced.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "distca/base/error.h"
#include "distca/plan/layout_balanced_fill.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::request_for;

constexpr int64_t k1K = 1024;

/// Every query at home; `tolerance_ppm` is what the layout may use.
PlanRequest home_request(const std::vector<int64_t>& lengths, int workers) {
  PlanRequest request = request_for(lengths, workers, "local", 20'000);
  request.options.layout = "balanced";
  return request;
}

TEST(BalancedLayout, any_documents_are_placed_whole_evenly_and_with_allowed_cuts) {
  Random random(11);
  for (int trial = 0; trial < 600; ++trial) {
    const int workers = 1 + static_cast<int>(random.below(9));
    std::vector<int64_t> lengths = testing::random_lengths(random);
    if (trial % 3 == 0) lengths.insert(lengths.end(), 40, 1 + static_cast<int64_t>(trial));
    PlanRequest request = home_request(lengths, workers);
    if (trial % 4 == 1) request.shape.window_left = static_cast<int64_t>(random.below(1000));
    for (int64_t& capacity : request.cluster.capacity) {
      if (trial % 5 == 1) capacity = static_cast<int64_t>(random.below(4));
    }
    request.cluster.capacity[0] += trial % 5 == 1 ? 1 : 0;
    if (trial % 7 == 1) request.cluster.capacity.insert(request.cluster.capacity.end(), 2, 3);
    const Layout layout = balanced_layout(request);
    request.shape.window_left = -1;  // of the layout, not of the tasks
    ValidateOptions at_home;
    at_home.capacities = false;
    EXPECT_THAT(validate(make_plan(request, layout), at_home), IsEmpty()) << "trial " << trial;
  }
}

}  // namespace
}  // namespace distca
