#pragma once
// play() plays a program on a compute stream and a communication stream (program/program.h says
// how). The caller says what an operation does. So a new schedule changes the program and not the
// callers. play() waits only for what the next operation needs, and never for a whole stream.
//
// On a CPU, the communication stream is the group's own threads: exchanges progress while the
// calling thread computes.
//
// Threads. Each rank has one executor and plays from one thread.

#include <array>
#include <cstddef>
#include <vector>

#include "distca/program/program.h"
#include "distca/trace/recorder.h"

namespace distca {

/// The caller's side of play(): it does the parts of operations.
class OpPlayer {
 public:
  virtual ~OpPlayer() = default;
  /// Does an operation of the compute stream.
  virtual void play(const Op& op) = 0;

  // The parts of an exchange are called in this order.
  virtual void pack(const Op& op) = 0;       // copies what travels into `out`
  virtual void issue(const Op& op) = 0;      // hands the messages to the group and returns at once
  virtual void wait(const Op& op) = 0;       // returns when everything received has landed in `in`
  virtual void land(const Op& op) = 0;       // puts what came home in its place
  virtual void wait_sent(const Op& op) = 0;  // returns when `out` may be written again
};

/// The parts that the time of an operation is divided into. kWait covers wait and wait_sent.
enum class OpPart : uint8_t { kPlay, kPack, kIssue, kWait, kLand };
inline constexpr int kNumOpParts = 5;

/// The seconds that were spent, by [kind][pass][part].
struct OpTimes {
  using Parts = std::array<double, kNumOpParts>;
  std::array<std::array<Parts, 2>, kNumOpKinds> seconds{};            // elapsed
  std::array<std::array<Parts, 2>, kNumOpKinds> processor_seconds{};  // by the playing thread

  // The elapsed seconds of some operations or parts, summed.
  double of(OpKind kind, Pass pass, OpPart part) const;
  double of(OpKind kind, Pass pass) const;
  double of(OpKind kind) const;
  double of(OpPart part) const;  // without the operations of gradients and weights
  /// The processor time of an operation.
  double processor_of(OpKind kind) const;
};

/// Tells when a device did an operation that the calling thread only gave to it.
class OpClock {
 public:
  virtual ~OpClock() = default;
  /// Marks the end of everything that the calling thread has given the device so far. The n-th call
  /// returns n - 1.
  virtual size_t mark() = 0;
  /// [mark] The times on the steady clock (base/clock.h) at which the device had done what each
  /// mark stands for. Waits until it has done all of it.
  virtual std::vector<double> seconds() = 0;
};

/// Plays every operation once and adds what it took to `times`. When it returns, every exchange is
/// finished and every send has left. Without a `recorder` nothing is recorded, which costs nothing.
/// `clock` is null if the calling thread itself does what it plays. Throws what the player throws,
/// but OutOfDeviceMemory (out_of_device_memory.h) in place of PyTorch's OutOfMemoryError.
void play(const Program& program, OpPlayer& player, OpTimes* times,
          TraceRecorder* recorder = nullptr, OpClock* clock = nullptr);

}  // namespace distca
