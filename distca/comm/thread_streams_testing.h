#pragma once
// For tests: a device made of threads. What a thread gives a stream is done later, in order, by a
// thread of the stream's own. Any thread may use it; use_stream() is of the calling thread.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "distca/comm/late_messages_testing.h"
#include "distca/comm/thread_group.h"

namespace distca::testing {

/// One stream. Each piece of work begins `pause` after the one before.
class ThreadStream {
 public:
  explicit ThreadStream(std::chrono::microseconds pause)
      : pause_(pause), thread_([this] { run(); }) {}
  ~ThreadStream() {
    give({});
    thread_.join();
  }
  void give(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_one();
  }
  DeviceMark mark() {
    auto done = std::make_shared<std::promise<void>>();
    auto end = std::make_shared<End>(done->get_future());
    give([done] { done->set_value(); });
    return end;
  }
  void follow(const DeviceMark& mark) {
    if (!mark) return;
    give([mark] { std::static_pointer_cast<End>(mark)->wait(); });
  }

 private:
  using End = std::shared_future<void>;

  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !work_.empty(); });
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (!work) return;
      std::this_thread::sleep_for(pause_);
      work();
    }
  }

  const std::chrono::microseconds pause_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

/// A stream for each of so many threads, one for copies, and two, in turn, for what is done aside.
class ThreadStreams {
 public:
  ThreadStreams(int threads, std::chrono::microseconds pause) : copies_(threads) {
    for (int i = 0; i < threads + 3; ++i) streams_.push_back(std::make_unique<ThreadStream>(pause));
  }

  /// Directs what the calling thread gives from now on to the thread's own stream.
  void use_stream(int thread) { own() = streams_.at(thread).get(); }
  void give(std::function<void()> work) { own()->give(std::move(work)); }
  /// Returns when all work is done; there is no stream any more.
  void end() {
    for (size_t i = 0; i < streams_.size(); ++i) give_last(*streams_[i]);
    streams_.clear();
  }

  ThreadDevice device(int cuda_device) {
    ThreadStream* const copies = streams_[copies_].get();
    return {.cuda_device = cuda_device,
            .mark = [] { return own()->mark(); },
            .copy =
                [copies](std::byte* to, const std::byte* from, int64_t bytes,
                         const DeviceMark& sender, const DeviceMark& receiver) {
                  copies->follow(sender);
                  copies->follow(receiver);
                  copies->give([=] { std::copy(from, from + bytes, to); });
                  return copies->mark();
                },
            .follow = [](const DeviceMark& mark) { own()->follow(mark); }};
  }
  Streams streams() {
    return {.spin =
                [](int64_t microseconds) {
                  own()->give([microseconds] {
                    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
                  });
                },
            .fill =
                [](std::byte* to, int64_t bytes) {
                  own()->give([=] { std::fill_n(to, bytes, std::byte{0xff}); });
                },
            .aside =
                [this](const std::function<void()>& body) {
                  const size_t aside = copies_ + 1 + next_aside_++ % 2;
                  ThreadStream* const before = std::exchange(own(), streams_[aside].get());
                  body();
                  own() = before;
                }};
  }

 private:
  static ThreadStream*& own() {
    thread_local ThreadStream* stream = nullptr;
    return stream;
  }
  static void give_last(ThreadStream& stream) {
    std::promise<void> done;
    stream.give([&] { done.set_value(); });
    done.get_future().wait();
  }

  const size_t copies_;
  std::atomic<size_t> next_aside_ = 0;
  std::vector<std::unique_ptr<ThreadStream>> streams_;
};

}  // namespace distca::testing
