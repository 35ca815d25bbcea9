#include "distca/comm/ordered_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>

#include "distca/base/error.h"
#include "distca/comm/test_groups.h"
#include "distca/comm/thread_group.h"

namespace distca {
namespace {

template <typename T>
std::vector<T> numbers_of(int rank, int64_t count) {
  // The numbers differ much in size, so that another order of adding gives other bits.
  std::mt19937_64 random(1000 + rank);
  std::vector<T> numbers(count);
  for (T& number : numbers) {
    const auto bits = static_cast<int64_t>(random());
    number = std::ldexp(static_cast<T>(bits >> 40), static_cast<int>(bits & 15));
  }
  if (count > 0) numbers[0] = T(-0.0);
  return numbers;
}

template <typename T>
std::vector<T> sequential_sum(int ranks, int64_t count) {
  std::vector<T> sum = numbers_of<T>(0, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<T> theirs = numbers_of<T>(rank, count);
    for (int64_t i = 0; i < count; ++i) sum[i] += theirs[i];
  }
  return sum;
}

template <typename T>
void expect_sequential(Communicator& group, int64_t count) {
  std::vector<T> mine = numbers_of<T>(group.rank(), count);
  const auto type = std::is_same_v<T, float> ? at::kFloat : at::kDouble;
  at::Tensor tensor = at::from_blob(mine.data(), {count}, type);
  ordered_sum(group, tensor, "sum");
  const std::vector<T> expected = sequential_sum<T>(group.size(), count);
  EXPECT_EQ(std::memcmp(mine.data(), expected.data(), count * sizeof(T)), 0)
      << count << " elements, rank " << group.rank() << " of " << group.size();
}

class OrderedSum : public ::testing::TestWithParam<Backend> {};

TEST_P(OrderedSum, is_bitwise_the_sequential_sum) {
  for (int size : {1, 2, 3, 4, 7}) {
    run_on(GetParam(), size, kPatient, [](Communicator& group) {
      for (int64_t count : {0, 1, 2, 5, 1001}) {
        expect_sequential<float>(group, count);
        expect_sequential<double>(group, count);
      }
      std::vector<double> mine = numbers_of<double>(group.rank(), 5);
      ordered_sum(group, std::span<double>(mine), "norm");
      EXPECT_EQ(mine, sequential_sum<double>(group.size(), 5));
    });
  }
}

TEST_P(OrderedSum, of_the_first_ranks_goes_on_while_the_others_do_something_else) {
  constexpr std::array kFirst = {0, 1, 2};
  run_on(GetParam(), 4, kPatient, [&](Communicator& whole) {
    if (whole.rank() < 3) {
      const auto first = whole.split(kFirst);
      EXPECT_EQ(first->rank(), whole.rank());
      expect_sequential<float>(*first, 1001);
      expect_sequential<double>(*first, 5);
    } else {
      EXPECT_THROW(whole.split(kFirst), CheckFailure);
    }
    expect_sequential<float>(whole, 1001);
  });
}

INSTANTIATE_TEST_SUITE_P(Each, OrderedSum,
                         ::testing::Values(Backend::kThreads, Backend::kGloo, Backend::kNccl),
                         [](const auto& info) { return to_string(info.param); });

TEST(OrderedSumChunks, a_tensor_of_several_chunks_is_summed_in_bounded_scratch) {
  // 3 ranks: a slice is 16 MiB / 2, a chunk 24 MiB; this is one chunk and a ragged second.
  run_ranks(3, kPatient,
            [](Communicator& group) { expect_sequential<float>(group, 3 * (2 << 20) + 12345); });
}

TEST(OrderedSumChunks, other_types_and_gaps_are_our_bug) {
  run_ranks(1, kPatient, [](Communicator& group) {
    at::Tensor half = at::zeros({4}, at::kBFloat16);
    EXPECT_THROW(ordered_sum(group, half, "sum"), CheckFailure);
    at::Tensor gaps = at::zeros({4, 4}).t().slice(0, 0, 2);
    EXPECT_THROW(ordered_sum(group, gaps, "sum"), CheckFailure);
  });
}

}  // namespace
}  // namespace distca
