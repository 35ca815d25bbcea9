#include "distca/runtime/task_lists.h"

#include <gtest/gtest.h>

#include "distca/base/random.h"
#include "distca/kernels/mask_parts.h"

namespace distca {
namespace {

TEST(TaskLists, kernels_see_the_pairs_that_plans_count) {
  Random random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    Mask mask{.window_left = static_cast<int64_t>(random.below(40)) - 1};
    if (random.below(4) == 0) mask = {.kind = MaskKind::kFull};
    const auto begin = static_cast<int64_t>(random.below(30));
    const Range q{begin, begin + static_cast<int64_t>(random.below(20))};
    const Range kv{static_cast<int64_t>(random.below(20)), 20};
    int64_t seen = 0;
    for (int64_t query = q.begin; query < q.end; ++query) {
      const Range keys = kernels::visible_keys(kernel_mask(mask), query, kv);
      if (!keys.empty()) seen += keys.size();
    }
    EXPECT_EQ(seen, mask.pairs(q, kv)) << "window " << mask.window_left;
  }
}

}  // namespace
}  // namespace distca
