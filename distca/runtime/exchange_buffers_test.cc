#include "distca/runtime/exchange_buffers.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace distca {
namespace {

Program with_buffers(std::vector<Buffer> buffers) {
  Program program;
  program.buffers = std::move(buffers);
  return program;
}

TEST(ExchangeBuffers, are_allocated_once_and_grow_only) {
  ExchangeBuffers buffers(/*cuda_device=*/-1);
  const Program program =
      with_buffers({{BufferRole::kQkvOut, 1000}, {BufferRole::kQkvIn, 3}, {BufferRole::kOIn, 64}});
  buffers.prepare(program);
  EXPECT_EQ(buffers.allocations(), 3);
  EXPECT_EQ(buffers.allocated_bytes(), 1067);
  const std::byte* const first = buffers.data(0);
  for (int i : {0, 1, 2}) {
    EXPECT_EQ(buffers.bytes(i), program.buffers[i].bytes);
    EXPECT_EQ(buffers.role(i), program.buffers[i].role);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.data(i)) % kMessageAlignment, 0u);
  }
  buffers.prepare(program);
  buffers.prepare(with_buffers({{BufferRole::kQkvOut, 400}}));
  EXPECT_EQ(buffers.allocations(), 3);
  EXPECT_EQ(buffers.bytes(0), 400);
  EXPECT_EQ(buffers.data(0), first);
  buffers.prepare(with_buffers({{BufferRole::kQkvOut, 1001}}));
  EXPECT_EQ(buffers.allocations(), 4);
  EXPECT_EQ(buffers.allocated_bytes(), 1068);
}

TEST(ExchangeBuffers, give_back_what_kept_keys_before_a_program_that_has_them_redispatched) {
  ExchangeBuffers buffers(/*cuda_device=*/-1);
  Program kept = with_buffers({{BufferRole::kQkvOut, 50},
                               {BufferRole::kQkvIn, 100},
                               {BufferRole::kQkvIn, 110},
                               {BufferRole::kQkvIn, 120}});
  kept.ops.push_back({.kind = OpKind::kDispatch});
  buffers.prepare(kept);
  EXPECT_EQ(buffers.allocated_bytes(), 380);
  // An evaluation runs between two steps.
  Program evaluation = with_buffers({{BufferRole::kQkvOut, 50}, {BufferRole::kQkvIn, 100}});
  evaluation.ops.push_back({.kind = OpKind::kDispatch});
  buffers.prepare(evaluation);
  buffers.prepare(kept);
  EXPECT_EQ(buffers.allocated_bytes(), 380);
  EXPECT_EQ(buffers.allocations(), 4);

  Program redispatched = with_buffers({{BufferRole::kQkvIn, 90}, {BufferRole::kQkvOut, 40}});
  redispatched.ops.push_back({.kind = OpKind::kRedispatch});
  buffers.prepare(redispatched);
  EXPECT_EQ(buffers.allocated_bytes(), 150);
  EXPECT_EQ(buffers.allocations(), 4);
  // One that receives nothing has none of them.
  redispatched.buffers = {{BufferRole::kQkvOut, 40}};
  buffers.prepare(redispatched);
  EXPECT_EQ(buffers.allocated_bytes(), 50);
  buffers.prepare(kept);
  EXPECT_EQ(buffers.allocated_bytes(), 380);
  EXPECT_EQ(buffers.allocations(), 7);
}

TEST(ExchangeBuffers, keep_their_memory_wherever_they_stand_in_the_next_program) {
  ExchangeBuffers buffers(/*cuda_device=*/-1);
  buffers.prepare(with_buffers(
      {{BufferRole::kQkvIn, 100}, {BufferRole::kOOut, 10}, {BufferRole::kQkvIn, 200}}));
  const std::byte* const first = buffers.data(0);
  const std::byte* const second = buffers.data(2);
  buffers.prepare(with_buffers(
      {{BufferRole::kOOut, 10}, {BufferRole::kQkvIn, 100}, {BufferRole::kQkvIn, 200}}));
  EXPECT_EQ(buffers.allocations(), 3);
  EXPECT_EQ(buffers.data(1), first);
  EXPECT_EQ(buffers.data(2), second);
}

}  // namespace
}  // namespace distca
