// Streams, and the functions by which comm/nccl/nccl_library.h reaches them.
#include "distca/comm/test_nccl/stream.h"

#include <cstdint>
#include <utility>

namespace standin {

void Mark::pass() {
  std::lock_guard lock(mutex_);
  passed_ = true;
  changed_.notify_all();
}

bool Mark::wait(std::chrono::microseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [this] { return passed_; });
}

void Mark::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return passed_; });
}

Stream::Stream() : thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::give(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

std::shared_ptr<Mark> Stream::mark() {
  auto mark = std::make_shared<Mark>();
  give([mark] { mark->pass(); });
  return mark;
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !work_.empty(); });
    if (work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

namespace {

Stream& stream_of(void* stream) { return *static_cast<Stream*>(stream); }
const std::shared_ptr<Mark>& mark_of(void* mark) {
  return *static_cast<std::shared_ptr<Mark>*>(mark);
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

int distcaHostStreamCreate(void** stream) {
  *stream = new Stream;
  return 0;
}

int distcaHostStreamDestroy(void* stream) {
  delete static_cast<Stream*>(stream);
  return 0;
}

int distcaHostStreamMark(void* stream, void** mark) {
  *mark = new std::shared_ptr<Mark>(stream_of(stream).mark());
  return 0;
}

int distcaHostStreamFollow(void* stream, void* mark) {
  stream_of(stream).give([mark = mark_of(mark)] { mark->wait(); });
  return 0;
}

int distcaHostStreamCall(void* stream, void (*call)(void*), void* argument) {
  stream_of(stream).give([call, argument] { call(argument); });
  return 0;
}

int distcaHostMarkWait(void* mark, int64_t microseconds) {
  return mark_of(mark)->wait(std::chrono::microseconds(microseconds)) ? 1 : 0;
}

int distcaHostMarkFree(void* mark) {
  delete static_cast<std::shared_ptr<Mark>*>(mark);
  return 0;
}
}
