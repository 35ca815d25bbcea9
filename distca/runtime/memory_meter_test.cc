#include "distca/runtime/memory_meter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace distca {
namespace {

constexpr int64_t kBytes = 1 << 20;

at::Tensor megabyte() { return at::empty({kBytes}, at::kByte); }

TEST(MemoryMeter, counts_what_its_thread_makes_until_it_is_freed) {
  const MemoryMeter meter(-1);
  EXPECT_EQ(meter.bytes(), 0);
  {
    const at::Tensor first = megabyte(), second = megabyte(), view = first.narrow(0, 5, 10);
    EXPECT_EQ(meter.bytes(), 2 * kBytes);
    EXPECT_EQ(at::empty({0}).numel(), 0);
  }
  EXPECT_EQ(meter.bytes(), 0);
  const at::Tensor third = megabyte();
  EXPECT_EQ(meter.bytes(), kBytes);
  EXPECT_EQ(meter.peak_bytes(), 2 * kBytes);
  EXPECT_GE(resident_peak_bytes(), meter.peak_bytes());
}

TEST(MemoryMeter, of_a_thread_leaves_other_threads_alone) {
  const MemoryMeter meter(-1);
  at::Tensor made_there, made_here = megabyte();
  std::thread([&] {
    const at::Tensor by_nobody = megabyte();
    const MemoryMeter other(-1);
    made_there = megabyte();
    made_here.reset();
    EXPECT_EQ(other.bytes(), kBytes);
  }).join();
  EXPECT_EQ(meter.bytes(), 0) << "another thread has freed it";
  made_there.reset();  // its meter has gone
  EXPECT_EQ(meter.bytes(), 0);
  EXPECT_EQ(meter.peak_bytes(), kBytes);
}

TEST(MemoryMeter, memory_has_the_alignment_and_the_contents_that_it_had) {
  at::Tensor grown = at::arange(10);  // before the meter
  const MemoryMeter meter(-1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(megabyte().data_ptr()) % 64, 0u);
  grown.resize_({1000});
  EXPECT_TRUE(at::equal(grown.narrow(0, 0, 10), at::arange(10)));
  EXPECT_TRUE(at::equal(at::ones({7}).clone(), at::ones({7})));
}

}  // namespace
}  // namespace distca
