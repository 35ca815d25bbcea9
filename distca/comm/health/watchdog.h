#pragma once
// Ends a wait that lasts too long, or that has become pointless: a thread that looks at the clock
// and calls what aborts the wait.
//
// Time counts in ticks, and a tick counts at most double: a program that was suspended as a whole
// (Ctrl-Z, fg) does not find all its deadlines passed.
// Thread rule: one wait at a time; interrupt() from any thread.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace distca {

class Watchdog {
 public:
  Watchdog(double timeout_s, double tick_s);

  /// A wait begins. `abort` is called at most once, before end() returns, by any thread.
  void begin(std::function<void()> abort);
  /// It is over; seconds it took.
  double end();
  /// Aborts the current wait and every later one.
  void interrupt();

 private:
  void run(const std::stop_token& stop);
  void abort_current();

  const double timeout_s_;
  const double tick_s_;
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::function<void()> abort_;  // ends the current wait; null between waits and once called
  double waited_s_ = 0;
  double begin_ = 0;  // steady seconds
  bool interrupted_ = false;
  std::jthread thread_;  // ends before what it uses
};

}  // namespace distca
