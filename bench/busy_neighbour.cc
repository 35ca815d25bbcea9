#include "bench/busy_neighbour.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>

#include "distca/base/error.h"

namespace distca::bench {

struct BusyNeighbour::Shared {
  std::atomic<bool> busy{false};
};

namespace {

void sleep_ms(int64_t milliseconds) {
  const timespec time{.tv_sec = 0, .tv_nsec = milliseconds * 1'000'000};
  nanosleep(&time, nullptr);
}

constexpr int64_t kPollMs = 1;  // how often it looks whether it should run, while it stands still

/// The other process. Between fork and here nothing but system calls: the caller has threads.
[[noreturn]] void live(const std::atomic<bool>& busy, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  close_range(3, ~0U, 0);  // the caller's connections
  for (volatile uint64_t turns = 0;;) {
    if (!busy.load(std::memory_order_relaxed)) {
      sleep_ms(kPollMs);
      continue;
    }
    for (int i = 0; i < 10'000; ++i) turns = turns + 1;
  }
}

}  // namespace

BusyNeighbour::BusyNeighbour() {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorKind::kIo, "memory for a busy neighbour: {}", strerror(errno));
  shared_ = new (memory) Shared;
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) live(shared_->busy, parent);
  if (process_ > 0) return;
  const int error = errno;
  munmap(memory, sizeof(Shared));
  throw Error(ErrorKind::kIo, "a busy neighbour's process: {}", strerror(error));
}

BusyNeighbour::~BusyNeighbour() {
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  munmap(shared_, sizeof(Shared));
}

void BusyNeighbour::run(bool busy) {
  shared_->busy.store(busy, std::memory_order_relaxed);
  sleep_ms(5 * kPollMs);
}

double BusyNeighbour::taken_seconds() const {
  clockid_t clock = 0;
  timespec time{};
  const int fault = clock_getcpuclockid(process_, &clock);
  DISTCA_CHECK(fault == 0 && clock_gettime(clock, &time) == 0, "a busy neighbour is gone");
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace distca::bench
