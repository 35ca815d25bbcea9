#pragma once
// What makes a rank slow. Thread rule: one thread.

namespace distca::bench {

class Throttle {
 public:
  virtual ~Throttle() = default;
  /// Takes effect within a few milliseconds.
  virtual void run(bool on) = 0;
  /// Of the rank's core, taken from the rank so far.
  virtual double taken_seconds() const = 0;
};

}  // namespace distca::bench
