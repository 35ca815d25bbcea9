#pragma once
// Plays a program for real on a compute and a communication stream (program/program.h says how).
// What an operation does is the caller's; a new schedule changes the program, not the callers.
// Waits only for what the next operation needs, never for a whole stream.
//
// On a CPU the communication stream is the group's own threads: exchanges progress while the
// calling thread computes. Thread rule: one executor a rank, one thread.

#include <array>
#include <cstddef>
#include <vector>

#include "distca/program/program.h"
#include "distca/trace/recorder.h"

namespace distca {

/// Does the parts of operations.
class OpPlayer {
 public:
  virtual ~OpPlayer() = default;
  /// Of the compute stream.
  virtual void play(const Op& op) = 0;
  // Of an exchange, in this order.
  virtual void pack(const Op& op) = 0;       // copies what travels into `out`
  virtual void issue(const Op& op) = 0;      // hands the messages to the group; returns at once
  virtual void wait(const Op& op) = 0;       // until all that is received has landed in `in`
  virtual void land(const Op& op) = 0;       // puts what came home in its place
  virtual void wait_sent(const Op& op) = 0;  // until `out` may be written again
};

/// What an operation's time went to. kWait covers wait and wait_sent.
enum class OpPart : uint8_t { kPlay, kPack, kIssue, kWait, kLand };
inline constexpr int kNumOpParts = 5;

/// Seconds spent, [kind][pass][part].
struct OpTimes {
  using Parts = std::array<double, kNumOpParts>;
  std::array<std::array<Parts, 2>, kNumOpKinds> seconds{};            // elapsed
  std::array<std::array<Parts, 2>, kNumOpKinds> processor_seconds{};  // of the playing thread

  double of(OpKind kind, Pass pass, OpPart part) const;
  double of(OpKind kind, Pass pass) const;  // all parts
  double of(OpKind kind) const;
  double processor_of(OpKind kind) const;
  double of(OpPart part) const;  // over all operations
};

/// Where operations are only given to a device, which does them later: when it does.
class OpClock {
 public:
  virtual ~OpClock() = default;
  /// All that the calling thread has given the device so far. The n-th call returns n - 1.
  virtual size_t mark() = 0;
  /// When the device had done what each mark stands for, on the steady clock (base/clock.h),
  /// [mark]. Waits until it has.
  virtual std::vector<double> seconds() = 0;
};

/// Plays every operation once; adds to `times`. `recorder`: null records nothing and costs nothing.
/// `clock`: null where the calling thread does what it plays. When it returns every exchange is
/// finished and every send has left.
void play(const Program& program, OpPlayer& player, OpTimes* times,
          TraceRecorder* recorder = nullptr, OpClock* clock = nullptr);

}  // namespace distca
