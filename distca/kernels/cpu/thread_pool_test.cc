#include "distca/kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "distca/base/error.h"

namespace distca::kernels {
namespace {

TEST(ThreadPoolTest, runs_every_item_once) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t items : {0, 1, 2, 3, 100, 5000}) {
      std::vector<std::atomic<int>> runs(items);
      pool.run(items, 0, [&](int64_t i, std::byte*) { ++runs[i]; });
      EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& n) { return n == 1; }))
          << threads << " threads, " << items << " items";
    }
  }
}

TEST(ThreadPoolTest, an_item_may_wait_for_any_earlier_one) {
  ThreadPool pool(3);
  std::vector<std::atomic<bool>> done(3000);
  pool.run(3000, 0, [&](int64_t i, std::byte*) {
    while (i > 0 && !done[i - 1]) std::this_thread::yield();
    done[i] = true;
  });
  EXPECT_TRUE(done.back());
}

TEST(ThreadPoolTest, several_threads_work_at_a_time_and_the_caller_is_one_of_them) {
  ThreadPool pool(2);
  std::atomic<int> present{0};
  std::vector<std::thread::id> ids(2);
  pool.run(2, 0, [&](int64_t i, std::byte*) {
    ids[i] = std::this_thread::get_id();
    ++present;
    while (present < 2) std::this_thread::yield();  // each item needs a thread of its own
  });
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), std::this_thread::get_id()), 1);
}

TEST(ThreadPoolTest, scratch_is_each_threads_own_aligned_and_large_enough) {
  ThreadPool pool(4);
  for (const size_t bytes : {size_t{1}, size_t{70'000}, size_t{3} << 20, size_t{100}}) {
    std::atomic<int> faults{0};
    pool.run(64, bytes, [&](int64_t i, std::byte* scratch) {
      if (reinterpret_cast<uintptr_t>(scratch) % 64 != 0) ++faults;
      std::memset(scratch, static_cast<int>(i), bytes);
      std::this_thread::yield();
      for (size_t b = 0; b < bytes; b += 61) faults += scratch[b] != static_cast<std::byte>(i);
    });
    EXPECT_EQ(faults, 0) << bytes;
  }
}

TEST(ThreadPoolTest, scratch_is_kept_from_call_to_call) {
  ThreadPool pool(1);
  std::byte* first = nullptr;
  pool.run(1, 100'000, [&](int64_t, std::byte* scratch) { first = scratch; });
  for (const size_t bytes : {size_t{10}, size_t{100'000}}) {
    pool.run(1, bytes, [&](int64_t, std::byte* scratch) { EXPECT_EQ(scratch, first); });
  }
}

TEST(ThreadPoolTest, an_exception_comes_out_of_run_and_the_pool_goes_on) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> runs{0};
      try {
        pool.run(100'000'000, 0, [&](int64_t i, std::byte*) {
          ++runs;
          if (i == 7) throw std::runtime_error("item 7");
        });
        ADD_FAILURE() << "no exception";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "item 7");
      }
      EXPECT_GE(runs, 8);
      EXPECT_LT(runs, 100'000'000) << "items are taken after one has failed";
    }
    EXPECT_THROW(pool.run(4, 0, [](int64_t, std::byte*) { DISTCA_CHECK_EQ(1, 2); }), CheckFailure);
    std::atomic<int> runs{0};
    pool.run(10, 0, [&](int64_t, std::byte*) { ++runs; });
    EXPECT_EQ(runs, 10);
  }
}

TEST(ThreadPoolTest, a_call_within_a_call_is_refused) {
  ThreadPool pool(2);
  const auto nothing = [](int64_t, std::byte*) {};
  EXPECT_THROW(pool.run(4, 0, [&](int64_t, std::byte*) { pool.run(1, 0, nothing); }), CheckFailure);
  EXPECT_THROW(ThreadPool(0), CheckFailure);
}

TEST(ThreadPoolTest, many_short_calls_and_long_pauses_lose_no_item) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  int64_t expected = 0;
  for (int call = 0; call < 3000; ++call) {
    const int64_t items = call % 5;
    pool.run(items, 64, [&](int64_t i, std::byte*) { sum += i + 1; });
    expected += items * (items + 1) / 2;
    if (call % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(sum, expected);
}

TEST(ThreadPoolTest, pools_start_and_end_without_work) {
  for (int i = 0; i < 100; ++i) ThreadPool pool(1 + i % 4);
}

}  // namespace
}  // namespace distca::kernels
