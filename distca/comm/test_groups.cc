#include "distca/comm/test_groups.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "distca/comm/gloo_group.h"
#include "distca/comm/local_store.h"
#include "distca/comm/thread_group.h"

namespace distca {

std::string to_string(Backend backend) { return backend == Backend::kThreads ? "threads" : "gloo"; }

void run_on(Backend backend, int size, const CommOptions& options,
            const std::function<void(Communicator&)>& body) {
  if (backend == Backend::kThreads) return run_ranks(size, options, body);
  ListenSocket socket(Interface::kLoopback, 0);
  const uint16_t port = socket.port();
  LocalStore store(socket);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Rendezvous rendezvous{.rank = rank,
                                    .size = size,
                                    .local_rank = rank,
                                    .address = loopback_address(),
                                    .port = port,
                                    .prefix = "test/",
                                    .source = "the test"};
        auto group = make_gloo_group(rendezvous, options);
        body(*group);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace distca
