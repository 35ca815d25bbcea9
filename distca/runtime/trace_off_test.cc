// The cost of tracing for a run that does not trace. This is a program of its own, because it
// counts allocations.

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "distca/program/program_testing.h"
#include "distca/runtime/executor_testing.h"

namespace {
int64_t allocations = 0;
}  // namespace

// Not inlined: the compiler would see memory of malloc() given to `delete`, or the other way round.
__attribute__((noinline)) void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace distca {
namespace {

/// Allocations while a program of `pairs` exchanges, each with an operation that needs it, plays.
int64_t allocations_of(int pairs, TraceRecorder* recorder) {
  Program program;
  for (int i = 0; i < pairs; ++i) {
    testing::add_exchange(program, {.kind = OpKind::kDispatch, .layer = i}, {{1, 8}}, {{1, 8}});
    program.ops.push_back(Op{.kind = OpKind::kCoreAttention, .layer = i, .wait_for = {2 * i}});
  }
  IdlePlayer player;
  OpTimes times;
  const int64_t before = allocations;
  play(program, player, &times, recorder);
  return allocations - before;
}

TEST(TraceOff, no_operation_allocates) {
  EXPECT_EQ(allocations_of(1000, nullptr), allocations_of(1, nullptr));
  TraceRecorder recorder;
  EXPECT_GT(allocations_of(1000, &recorder), 1000);  // the count counts
}

}  // namespace
}  // namespace distca
