#include <ATen/ATen.h>

#include "distca/train/tensor_messages.h"

#include <gtest/gtest.h>

#include <vector>

#include "distca/comm/thread_group.h"

namespace distca {
namespace {

/// Every rank of three has these numbers in each row, by rank; the sum of each rank's row.
std::vector<double> sums_of(const std::vector<double>& parts, ScalarType type) {
  const int ranks = static_cast<int>(parts.size());
  std::vector<double> sums(ranks);
  run_ranks(ranks, {}, [&](Communicator& comm) {
    const LlamaConfig model{.hidden_size = 2, .dtype = type};
    Program program;
    program.stage.tensor = {.size = ranks, .index = comm.rank()};
    const ExchangeBuffers buffers(/*cuda_device=*/-1);
    TensorMessages messages(program, buffers, comm, model, /*recorder=*/nullptr);
    const std::vector<int64_t> counts(ranks, 1);
    const at::Tensor mine = at::full({ranks, model.hidden_size}, parts[comm.rank()],
                                     type == ScalarType::kFloat64 ? at::kDouble : at::kBFloat16);
    sums[comm.rank()] = messages.sum_rows(mine, counts)[0][0].item<double>();
  });
  return sums;
}

TEST(TensorMessages, parts_are_added_in_rank_order_whoever_has_the_row) {
  // Added up from the last one on, these make 1.
  EXPECT_EQ(sums_of({1e16, 1, -1e16}, ScalarType::kFloat64), std::vector<double>(3, 0.0));
}

TEST(TensorMessages, a_sum_of_narrow_parts_is_rounded_once) {
  // 1 + 1/256 is halfway to the next number of bfloat16, and would be rounded down.
  EXPECT_EQ(sums_of({1, 1. / 256, 1. / 256}, ScalarType::kBFloat16),
            std::vector<double>(3, 1 + 1. / 128));
}

}  // namespace
}  // namespace distca
