#pragma once
// The memory of a program's buffers: sized by the program, allocated once, reused over layers,
// nano-batches and steps; a later program with larger buffers makes them grow. Only what received
// Q, K, V were kept in is given back, before a program that has them redispatched: keys are
// redispatched where memory is short. Thread rule: one thread; no exchange may be under way in
// prepare().

#include <cstdint>
#include <memory>

#include "distca/program/program.h"

namespace distca {

class ExchangeBuffers {
 public:
  /// `cuda_device`: where they lie, -1 = CPU.
  explicit ExchangeBuffers(int cuda_device);
  ~ExchangeBuffers();

  /// Makes room for every buffer of the program. Contents are lost where a buffer grows. A program
  /// with kRedispatch frees kQkvIn buffers beyond its own. An evaluation's has none, so it does not
  /// cost the next step its buffers.
  void prepare(const Program& program);
  /// Of the prepared program; aligned to kMessageAlignment, not initialised. Valid until the next
  /// prepare().
  std::byte* data(int32_t buffer) const;
  int64_t bytes(int32_t buffer) const;
  BufferRole role(int32_t buffer) const;
  /// Of all buffers that are held, and how often one had to be allocated since construction.
  int64_t allocated_bytes() const;
  int64_t allocations() const;
  int cuda_device() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
