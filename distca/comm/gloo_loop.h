#pragma once
// Keeps Gloo's thread from wasting the core of the thread that issues messages.
//
// One thread of Gloo's (gloo_tcp_loop) reads and writes for all connections of a device. Posting
// takes a connection's lock and calls the system, which is when that thread is woken: by what has
// just arrived, or by the answer to what was just sent. On the same core the scheduler lets it run
// at once; it finds the lock taken, by a thread that now waits for the core, and asks epoll again
// and again until the clock ticks. So while a rank issues, its loop does not take the core from
// others; if it was woken meanwhile, it runs when the issuer waits or its slice ends. A seventh of
// the vain calls remains (bench/results/gloo_loop_epyc_2026-11-21.md): probably those of a loop
// that runs when an issue begins, or that a tick lets run within one.

#include <sys/types.h>

#include <functional>
#include <vector>

namespace distca {

/// One thread at a time; start() of several objects by several threads.
class GlooLoop {
 public:
  /// Runs `make_device`, which starts the thread.
  void start(const std::function<void()>& make_device);

  /// While it lives, the thread is woken but waits for its turn (SCHED_BATCH, which needs no
  /// privilege); on an idle core that is at once. A thread under another policy than the ordinary
  /// one is left alone. Two system calls.
  class HeldBack {
   public:
    explicit HeldBack(const GlooLoop& loop) : loop_(loop) { loop_.set_batch(true); }
    ~HeldBack() { loop_.set_batch(false); }
    HeldBack(const HeldBack&) = delete;
    HeldBack& operator=(const HeldBack&) = delete;

   private:
    const GlooLoop& loop_;
  };

  /// One kernel identifier, unless Gloo changes. With ranks as threads of one process (tests) one
  /// that another rank started at the same time may be among them.
  const std::vector<pid_t>& threads() const { return threads_; }

 private:
  void set_batch(bool batch) const;

  std::vector<pid_t> threads_;
};

}  // namespace distca
