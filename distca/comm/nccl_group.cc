#include "distca/comm/nccl_group.h"

#include "distca/base/error.h"

#ifdef DISTCA_WITH_NCCL

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/comm/board.h"
#include "distca/comm/collectives.h"

namespace distca {
namespace {

// Deadlines are ours; NCCL's only has to be longer than any.
constexpr std::chrono::milliseconds kNcclTimeout = std::chrono::hours(24);
constexpr std::chrono::microseconds kPoll(20);
constexpr std::chrono::milliseconds kWatchTick(50);

/// The connections of one rank, shared with its exchanges. A thread of their own watches the
/// exchanges that the device waits for and no thread does: it ends the group when one is not over
/// in time, so that whoever waits for the device comes back, and hears why at its next exchange.
struct NcclConnections {
  NcclConnections(const Rendezvous& rendezvous, const CommOptions& options, int cuda_device)
      : rank(rendezvous.rank),
        size(rendezvous.size),
        device(cuda_device),
        timeout_s(options.timeout_s),
        board(rendezvous, options, [] {}) {
    board.wait_for_all();
    c10d::TCPStoreOptions store_options;
    store_options.port = rendezvous.port;
    store_options.waitWorkers = false;
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        rendezvous.prefix + "nccl",
        c10::make_intrusive<c10d::TCPStore>(rendezvous.address, store_options));
    auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
    nccl_options->timeout = kNcclTimeout;
    group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, nccl_options);
    watchman_ = std::thread([this] { run(); });
  }
  ~NcclConnections() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    watchman_.join();
    if (failed) group.release();  // it would wait for its kernels; the process is about to end
  }

  void watch(const c10::intrusive_ptr<c10d::Work>& work, const FailedWait& wait) {
    std::lock_guard lock(mutex_);
    watched_.push_back({work, wait, {}});
  }
  /// The verdict; the device waits no longer.
  std::string end(const FailedWait& wait) {
    std::string why = board.judge(wait);
    if (!failed.exchange(true)) group->abort();
    return why;
  }
  [[noreturn]] void fail(const FailedWait& wait) { throw Error(ErrorKind::kComm, "{}", end(wait)); }

  const int rank, size, device;
  const double timeout_s;
  Board board;
  c10::intrusive_ptr<c10d::Backend> group;
  std::atomic<bool> failed = false;

 private:
  struct Watched {
    c10::intrusive_ptr<c10d::Work> work;
    FailedWait wait;
    Stopwatch since;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kWatchTick, [this] { return stop_; })) {
      std::erase_if(watched_, [](const Watched& one) {
        return one.work->isCompleted() && !one.work->exception();
      });
      if (watched_.empty()) continue;
      const auto lost = std::ranges::find_if(
          watched_, [](const Watched& one) { return one.work->exception() != nullptr; });
      const bool any_lost = lost != watched_.end();
      const Watched& one = any_lost ? *lost : watched_.front();  // that waits longest
      FailedWait wait = one.wait;
      wait.waited_s = one.since.seconds();
      if (any_lost) wait.end = WaitEnd::kConnectionLost;
      if (!any_lost && wait.waited_s <= timeout_s && !board.alarmed()) continue;
      lock.unlock();
      end(wait);
      return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> watched_;  // in the order of their waits
  bool stop_ = false;
  std::thread watchman_;
};

class NcclExchange : public PendingExchange {
 public:
  NcclExchange(std::shared_ptr<NcclConnections> connections, FailedWait wait,
               c10::intrusive_ptr<c10d::Work> work)
      : connections_(std::move(connections)), wait_(std::move(wait)), work_(std::move(work)) {}
  ~NcclExchange() override {
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      wait();
    } catch (const Error&) {
      // Whoever cares has called wait().
    }
  }

  /// The caller's stream waits, the caller does not. NCCL runs the sends and receives of a group as
  /// one kernel: the sends have left then too.
  void wait_received() override {
    if (connections_->failed) connections_->fail(wait_);
    if (!work_ || ordered_) return;
    ordered_ = true;
    connections_->watch(work_, wait_);
    work_->wait();
  }
  /// Once the device waits, the watchman keeps the deadline and the host need not stop for it: the
  /// stream already comes behind the one kernel that sends and receives.
  void wait() override {
    if (!work_) return;
    const c10::intrusive_ptr<c10d::Work> work = std::exchange(work_, {});
    if (ordered_) {
      if (connections_->failed) connections_->fail(wait_);
      return;
    }
    const Stopwatch watch;
    while (!work->isCompleted()) {
      wait_.waited_s = watch.seconds();
      if (wait_.waited_s > connections_->timeout_s || connections_->board.alarmed()) {
        connections_->fail(wait_);
      }
      std::this_thread::sleep_for(kPoll);
    }
    if (connections_->failed) connections_->fail(wait_);
    if (work->exception()) {
      wait_.end = WaitEnd::kConnectionLost;
      connections_->fail(wait_);
    }
    work->wait();  // complete: only orders the caller's stream behind it
  }

 private:
  std::shared_ptr<NcclConnections> connections_;
  FailedWait wait_;
  c10::intrusive_ptr<c10d::Work> work_;
  bool ordered_ = false;  // the caller's stream comes behind it
  const int exceptions_ = std::uncaught_exceptions();
};

class NcclCommunicator : public Communicator {
 public:
  explicit NcclCommunicator(std::shared_ptr<NcclConnections> connections)
      : connections_(std::move(connections)) {}

  int rank() const override { return connections_->rank; }
  int size() const override { return connections_->size; }
  int cuda_device() const override { return connections_->device; }
  void set_step(int64_t step) override { connections_->board.set_step(step); }

  std::unique_ptr<PendingExchange> post(std::span<const Message> sends,
                                        std::span<const Message> receives,
                                        std::string_view operation, TakePart who) override {
    FailedWait wait{.rank = rank(), .at = connections_->board.begin(operation, who)};
    std::set<int> peers;
    for (const Message& message : sends) peers.insert(message.peer);
    for (const Message& message : receives) peers.insert(message.peer);
    wait.peers.assign(peers.begin(), peers.end());
    if (connections_->failed || connections_->board.alarmed()) connections_->fail(wait);
    if (peers.empty()) return std::make_unique<NcclExchange>(connections_, wait, nullptr);
    c10d::Backend& group = *connections_->group;
    c10::intrusive_ptr<c10d::Work> work;
    try {
      group.startCoalescing();
      for (const Message& message : receives) {
        std::vector<at::Tensor> bytes = as_tensor(message);
        group.recv(bytes, message.peer, 0);
      }
      for (const Message& message : sends) {
        std::vector<at::Tensor> bytes = as_tensor(message);
        group.send(bytes, message.peer, 0);
      }
      work = group.endCoalescing();
    } catch (const std::exception&) {
      wait.end = WaitEnd::kConnectionLost;
      connections_->fail(wait);
    }
    return std::make_unique<NcclExchange>(connections_, std::move(wait), std::move(work));
  }

 private:
  std::vector<at::Tensor> as_tensor(const Message& message) const {
    const auto device = at::Device(at::kCUDA, static_cast<int8_t>(connections_->device));
    return {
        at::from_blob(message.data, {message.bytes}, at::TensorOptions(at::kByte).device(device))};
  }

  std::shared_ptr<NcclConnections> connections_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_group(const Rendezvous& rendezvous,
                                              const CommOptions& options, int cuda_device) {
  auto group = std::make_unique<NcclCommunicator>(
      std::make_shared<NcclConnections>(rendezvous, options, cuda_device));
  // NCCL connects at the first call, which all ranks have to take part in.
  barrier(*group, "connecting all ranks");
  return group;
}

}  // namespace distca

#else

namespace distca {

std::unique_ptr<Communicator> make_nccl_group(const Rendezvous&, const CommOptions&, int) {
  throw Error(ErrorKind::kConfig,
              "this build has no NCCL: use a PyTorch with CUDA, or ranks as threads on one device");
}

}  // namespace distca

#endif
