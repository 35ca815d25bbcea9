// The only file that includes ProcessGroupGloo.hpp. The wheel exports Gloo's group but lacks Gloo's
// headers; the system's are older, so a gloo type must never be constructed or derived here: its
// layout may differ from the wheel's. gloo_symbols_test.cmake holds us to it.
#include "distca/comm/gloo_group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <set>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/comm/gloo_loop.h"
#include "distca/comm/health/board.h"
#include "distca/comm/health/watchdog.h"
#include "distca/comm/hushed_cerr.h"
#include "distca/comm/launch/own_address.h"
#include "distca/comm/launch/run_store.h"

namespace distca {
namespace {

using std::chrono::milliseconds;

// Deadlines are ours; Gloo's, which would close the connections of live ranks, must never pass.
constexpr milliseconds kGlooTimeout = std::chrono::hours(24);
constexpr milliseconds kConnectTick(20);
constexpr double kOursFirst = 1;  // seconds

/// Of GLOO_SOCKET_IFNAME, checked before anybody waits for us.
std::optional<std::string> named_interface() {
  auto name = env_string("GLOO_SOCKET_IFNAME");
  if (name) check_interface(*name);
  return name;
}

/// A send or a receive under way.
struct Pending {
  c10::intrusive_ptr<c10d::Work> work;
  int peer = 0;
};

/// Gloo's connecting, which waits for each of its tries as long as for all and cannot be ended: a
/// thread of its own that whoever gives up leaves behind.
struct Connecting {
  const Rendezvous rendezvous;
  const double timeout_s;
  const std::string place;  // an interface's name or address
  const bool by_name;

  const HushedCerr hushed = {};  // also of a thread that was left behind
  std::mutex mutex = {};
  std::condition_variable changed = {};
  bool ended = false;
  std::optional<std::string> failure = {};
  GlooLoop loop = {};
  c10::intrusive_ptr<c10d::Backend> group = {};

  void run();
  void make_group();
};

void Connecting::run() {
  std::optional<std::string> said;
  try {
    make_group();
  } catch (const std::exception& error) {
    said = first_line(error);
  }
  std::lock_guard lock(mutex);
  failure = std::move(said);
  ended = true;
  changed.notify_all();
}

void Connecting::make_group() {
  c10d::TCPStoreOptions store_options;
  store_options.port = rendezvous.port;
  store_options.waitWorkers = false;
  store_options.timeout = to_milliseconds(timeout_s);
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      rendezvous.prefix + "gloo",
      c10::make_intrusive<c10d::TCPStore>(rendezvous.address, store_options));
  auto options = c10d::ProcessGroupGloo::Options::create(to_milliseconds(timeout_s));
  loop.start([&] {
    options->devices.push_back(by_name ? c10d::ProcessGroupGloo::createDeviceForInterface(place)
                                       : c10d::ProcessGroupGloo::createDeviceForHostname(place));
  });
  options->threads = 1;  // of collectives, which we do not use
  group =
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, rendezvous.rank, rendezvous.size, options);
}

/// The connections of one rank, shared with its exchanges.
struct GlooConnections {
  GlooConnections(const Rendezvous& rendezvous, const CommOptions& options)
      : rank(rendezvous.rank),
        size(rendezvous.size),
        watchdog(std::make_shared<Watchdog>(options.timeout_s, heartbeat_s(options) / 4)),
        board(rendezvous, options, [watchdog = watchdog] { watchdog->interrupt(); }) {
    board.wait_for_all();
    connect(rendezvous);
    board.end_startup();
  }
  ~GlooConnections() {
    // The destructor of a failed group may wait for what will never come. The process is about to
    // end; the system closes its connections.
    if (failed) group.release();
  }

  void connect(const Rendezvous& rendezvous);
  [[noreturn]] void fail(FailedWait wait);

  const int rank, size;
  const std::optional<std::string> interface = named_interface();
  std::shared_ptr<Watchdog> watchdog;
  Board board;
  GlooLoop loop;
  c10::intrusive_ptr<c10d::Backend> group;
  bool failed = false;
};

void GlooConnections::connect(const Rendezvous& rendezvous) {
  const double start = steady_seconds();
  const std::shared_ptr<Connecting> connecting(
      new Connecting{.rendezvous = rendezvous,
                     // c10d's deadline: later than ours, below, which says who was awaited.
                     .timeout_s = std::max(board.startup_deadline() - start, 0.0) + kOursFirst,
                     .place = interface ? *interface : board.own_address(),
                     .by_name = interface.has_value()});
  std::thread([connecting] { connecting->run(); }).detach();
  std::unique_lock lock(connecting->mutex);
  while (!connecting->ended && !board.alarmed() && !board.neighbour_lost() &&
         steady_seconds() < board.startup_deadline()) {
    connecting->changed.wait_for(lock, kConnectTick);
  }
  if (connecting->ended && !connecting->failure) {
    group = std::move(connecting->group);
    loop = connecting->loop;
    return;
  }
  FailedWait wait{.rank = rank,
                  .at = {.operation = "connecting all ranks"},
                  .waited_s = steady_seconds() - start};
  if (connecting->ended) {
    wait.why = fmt::format("rank {} cannot connect through {}: {}", rank, connecting->place,
                           *connecting->failure);
  }
  lock.unlock();
  fail(std::move(wait));
}

void GlooConnections::fail(FailedWait wait) {
  failed = true;
  throw Error(ErrorKind::kComm, "{}", board.judge(wait));
}

class GlooExchange : public PendingExchange {
 public:
  /// The first `num_receives` of `pending` are receives.
  GlooExchange(std::shared_ptr<GlooConnections> connections, Activity at,
               std::vector<Pending> pending, size_t num_receives)
      : connections_(std::move(connections)),
        at_(std::move(at)),
        pending_(std::move(pending)),
        num_receives_(num_receives) {}

  ~GlooExchange() override {
    // A rank that fails does not wait for the others: they are about to hear of it.
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      wait();
    } catch (const Error&) {
      // Whoever cares has called wait().
    }
  }

  void wait_received() override { wait_for_first(num_receives_); }
  void wait() override { wait_for_first(pending_.size()); }

 private:
  void wait_for_first(size_t count) {
    if (count == 0) return;
    // Gone when this throws: Gloo then no longer touches the messages' memory.
    std::vector<Pending> pending = std::exchange(pending_, {});
    num_receives_ = 0;
    WaitEnd end = WaitEnd::kGaveUp;
    std::string why;
    size_t done = 0;
    connections_->watchdog->begin([&pending] {
      for (const Pending& one : pending) one.work->abort();
    });
    try {
      while (done < count && pending[done].work->wait(kGlooTimeout)) ++done;
    } catch (const std::exception& error) {
      end = WaitEnd::kConnectionLost;
      why = first_line(error);
    }
    const double waited_s = connections_->watchdog->end();
    if (done == count) {
      pending_.assign(pending.begin() + static_cast<std::ptrdiff_t>(count), pending.end());
      return;
    }
    std::set<int> peers = {pending[done].peer};
    for (size_t i = done; end == WaitEnd::kGaveUp && i < count; ++i) {
      peers.insert(pending[i].peer);
    }
    connections_->fail({.rank = connections_->rank,
                        .at = at_,
                        .waited_s = waited_s,
                        .peers = {peers.begin(), peers.end()},
                        .end = end,
                        .why = why});
  }

  std::shared_ptr<GlooConnections> connections_;
  Activity at_;
  std::vector<Pending> pending_;  // receives, then sends, that were not waited for
  size_t num_receives_;           // in pending_
  const int exceptions_ = std::uncaught_exceptions();
};

class GlooCommunicator : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<GlooConnections> connections)
      : connections_(std::move(connections)) {}

  int rank() const override { return connections_->rank; }
  int size() const override { return connections_->size; }
  void set_step(int64_t step) override { connections_->board.set_step(step); }

  std::unique_ptr<PendingExchange> post(std::span<const Message> sends,
                                        std::span<const Message> receives,
                                        std::string_view operation, TakePart who) override {
    const Activity at = connections_->board.begin(operation, who);
    if (connections_->board.alarmed()) connections_->fail({.rank = rank(), .at = at});
    std::vector<Pending> pending;
    pending.reserve(sends.size() + receives.size());
    int peer = 0;
    try {
      const GlooLoop::HeldBack held_back(connections_->loop);
      // Receives first: a send then finds its receive waiting and need not be announced.
      for (const Message& message : receives) {
        std::vector<at::Tensor> bytes = as_tensor(message);
        peer = message.peer;
        pending.push_back(
            {connections_->group->recv(bytes, peer, static_cast<int>(message.tag)), peer});
      }
      for (const Message& message : sends) {
        std::vector<at::Tensor> bytes = as_tensor(message);
        peer = message.peer;
        pending.push_back(
            {connections_->group->send(bytes, peer, static_cast<int>(message.tag)), peer});
      }
    } catch (const CheckFailure&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      connections_->fail({.rank = rank(),
                          .at = at,
                          .peers = {peer},
                          .end = WaitEnd::kConnectionLost,
                          .why = first_line(error)});
    }
    return std::make_unique<GlooExchange>(connections_, at, std::move(pending), receives.size());
  }

 private:
  std::vector<at::Tensor> as_tensor(const Message& message) const {
    DISTCA_CHECK(message.peer >= 0 && message.peer < size() && message.peer != rank(),
                 "peer {} of rank {}", message.peer, rank());
    DISTCA_CHECK(message.bytes > 0 && message.tag < (1u << 31), "{} bytes, tag {}", message.bytes,
                 message.tag);
    return {at::from_blob(message.data, {message.bytes}, at::kByte)};
  }

  std::shared_ptr<GlooConnections> connections_;
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_group(const Rendezvous& rendezvous,
                                              const CommOptions& options) {
  return std::make_unique<GlooCommunicator>(std::make_shared<GlooConnections>(rendezvous, options));
}

}  // namespace distca
