#include "distca/base/parallel.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace distca {
namespace {

TEST(ForEachInParallel, calls_each_once_whatever_the_number_of_threads) {
  for (const int threads : {0, 1, 2, 7}) {
    for (const size_t count : {0, 1, 2, 100}) {
      std::vector<int> calls(count, 0);
      for_each_in_parallel(count, threads, [&](size_t i) { ++calls[i]; });
      EXPECT_EQ(calls, std::vector<int>(count, 1)) << threads << " threads, " << count;
    }
  }
  EXPECT_GE(threads_here(), 1);
}

TEST(ForEachInParallel, rethrows_what_a_loop_would_have_thrown) {
  for (const int threads : {1, 4}) {
    try {
      for_each_in_parallel(100, threads, [](size_t i) {
        if (i % 10 == 7) throw std::runtime_error(std::to_string(i));
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "7");
    }
  }
}

}  // namespace
}  // namespace distca
