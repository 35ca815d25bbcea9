#include "distca/train/peak.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "distca/comm/thread_group.h"

namespace distca {
namespace {

ComputePeak peak(int ranks, const Config& config) {
  ComputePeak result;
  run_ranks(ranks, {}, [&](Communicator& comm) {
    const ComputePeak mine = measure_peak(config, comm);
    if (comm.rank() == 0) result = mine;
  });
  return result;
}

TEST(ComputePeak, is_of_what_computes_attention) {
  EXPECT_EQ(peak(1, load_config("", {"attention.kernel=cpu"})).of, "float32 multiply-adds");
  EXPECT_EQ(peak(1, load_config("", {"attention.kernel=aten"})).of, "float32 matrix products");
}

TEST(ComputePeak, ranks_that_share_cores_count_once) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const Config config = load_config("", {"attention.kernel=cpu"});
  const double one = peak(1, config).flops_per_s;
  EXPECT_GT(one, 1e8);
  // Each rank finds a free core for its fastest burst: counted each, it would be 8 times.
  EXPECT_LT(peak(8 * cores, config).flops_per_s, 4.0 * cores * one);
}

}  // namespace
}  // namespace distca
