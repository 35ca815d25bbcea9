#include "distca/comm/test_groups.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <ostream>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/comm/gloo_group.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/nccl/nccl_group.h"
#include "distca/comm/thread_group.h"

namespace distca {
namespace {

// The launcher does this for ranks, too: a slow name server must not slow the tests.
[[maybe_unused]] const int kQuickNames = setenv("RES_OPTIONS", "timeout:1 attempts:1", 0);

}  // namespace

std::string to_string(Backend backend) {
  return backend == Backend::kThreads ? "threads" : backend == Backend::kGloo ? "gloo" : "nccl";
}

void PrintTo(Backend backend, std::ostream* out) { *out << to_string(backend); }

double short_timeout_s(double at_least_s) {
  constexpr int kThreads = 4, kTurns = 20;
  static constexpr double kSleep_s = 0.002;
  std::array<double, kThreads> longest_s{};
  std::vector<std::thread> threads;
  for (double& longest : longest_s) {
    threads.emplace_back([&longest] {
      for (int turn = 0; turn < kTurns; ++turn) {
        const Stopwatch watch;
        std::this_thread::sleep_for(std::chrono::duration<double>(kSleep_s));
        longest = std::max(longest, watch.seconds() - kSleep_s);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::max(at_least_s, 100 * *std::ranges::max_element(longest_s));
}

Rendezvous at_port(uint16_t port, int rank, int size) {
  return {.rank = rank,
          .size = size,
          .local_rank = rank,
          .address = loopback_address(),
          .port = port,
          .prefix = "test/",
          .source = "the test",
          .run = "the test"};
}

void run_with_store(int size, const std::function<void(uint16_t port, int rank)>& body) {
  ListenSocket socket(Interface::kLoopback, 0);
  const uint16_t port = socket.port();
  const LocalStore store(socket);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(port, rank);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

const NcclLibrary& nccl_standin() {
  static const NcclLibrary library = load_nccl(DISTCA_NCCL_STANDIN);
  return library;
}

void run_on(Backend backend, int size, const CommOptions& options,
            const std::function<void(Communicator&)>& body) {
  if (backend == Backend::kThreads) return run_ranks(size, options, body);
  run_with_store(size, [&](uint16_t port, int rank) {
    const Rendezvous rendezvous = at_port(port, rank, size);
    const std::unique_ptr<Communicator> group =
        backend == Backend::kGloo ? make_gloo_group(rendezvous, options)
                                  : make_nccl_group(rendezvous, options, nccl_standin(),
                                                    host_nccl_device(nccl_standin()));
    body(*group);
  });
}

}  // namespace distca
