#include "distca/comm/launch/store_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/stop_signals.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/launch/own_address.h"

namespace distca {
namespace {

constexpr char kDone = 'd';
constexpr double kPoll = 0.01;   // seconds between two looks at who has gone
constexpr double kPatience = 1;  // seconds the store of the run before may take to end
constexpr double kRetrySeconds = 0.05;

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

ListenSocket listen_at(uint16_t port) {
  const Stopwatch watch;
  while (true) {
    try {
      return {Interface::kAll, port};
    } catch (const Error&) {
      if (watch.seconds() > kPatience) throw;
    }
    sleep(kRetrySeconds);
  }
}

/// The child: serves until rank 0 has ended, and until all have said how, or one grace period.
[[noreturn]] void serve(ListenSocket& socket, int alive, const Rendezvous& rendezvous,
                        double grace_s) {
  // A stop signal goes to a whole group of processes: the ranks save, and still need us.
  for (const int stop : kStopSignals) signal(stop, SIG_IGN);
  // Whoever reads rank 0's output must not wait for us.
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2 && null >= 0; ++fd) dup2(null, fd);
  try {
    LocalStore store(socket);
    store.belong_to(rendezvous.run, rendezvous.prefix, rendezvous.size);
    char word = 0;
    ssize_t got = 0;
    do {
      got = read(alive, &word, 1);
    } while (got < 0 && errno == EINTR);
    store.close_to_newcomers();
    if (got != 1 || word != kDone) {
      store.post_death(rendezvous.prefix, rendezvous.rank, "ended unexpectedly");
    }
    const Stopwatch watch;
    while (store.exit_reports(rendezvous.prefix) < rendezvous.size && watch.seconds() < grace_s) {
      sleep(kPoll);
    }
  } catch (const std::exception&) {
    _exit(1);  // the ranks report that they find no store
  }
  _exit(0);
}

}  // namespace

StoreProcess::~StoreProcess() {
  if (std::uncaught_exceptions() > exceptions_) return;
  [[maybe_unused]] const ssize_t written = write(alive_.get(), &kDone, 1);
}

std::unique_ptr<StoreProcess> start_store_process(const Rendezvous& rendezvous, double grace_s) {
  if (rendezvous.store_host != StoreHost::kStoreProcess || rendezvous.rank != 0) return nullptr;
  check_address(rendezvous);  // while nothing holds the port yet
  ListenSocket socket = listen_at(rendezvous.port);
  int alive[2];
  DISTCA_THROW_IF(pipe2(alive, O_CLOEXEC) != 0, ErrorKind::kIo, "no pipe for the store process: {}",
                  std::strerror(errno));
  const pid_t child = fork();
  DISTCA_THROW_IF(child < 0, ErrorKind::kIo, "cannot start the store process: {}",
                  std::strerror(errno));
  if (child == 0) {
    close(alive[1]);
    serve(socket, alive[0], rendezvous, grace_s);
  }
  close(alive[0]);
  return std::make_unique<StoreProcess>(alive[1]);
}

}  // namespace distca
