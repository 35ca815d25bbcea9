#pragma once
// Streams of the stand-in for NCCL: what a stream is given is done later, in order, by a thread of
// its own. A mark is a point in a stream. Any thread.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace standin {

class Mark {
 public:
  void pass();
  /// Waits at most so long. Returns true if the mark has been passed.
  bool wait(std::chrono::microseconds patience);
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool passed_ = false;
};

class Stream {
 public:
  Stream();
  /// Does what it was given first.
  ~Stream();
  void give(std::function<void()> work);
  std::shared_ptr<Mark> mark();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace standin
