#include "distca/comm/nccl_group.h"

#include "distca/base/error.h"

#ifdef DISTCA_WITH_NCCL

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/comm/board.h"
#include "distca/comm/collectives.h"
#include "distca/comm/device_watch.h"

namespace distca {
namespace {

// Deadlines are ours; NCCL's only has to be longer than any.
constexpr std::chrono::milliseconds kNcclTimeout = std::chrono::hours(24);
constexpr std::chrono::microseconds kPoll(20);

/// The connections of one rank, shared with its exchanges. When the watch ends the group, whoever
/// waits for the device comes back, and hears why at its next exchange.
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
    watch_.emplace(DeviceWatch::Group{.timeout_s = timeout_s,
                                      .alarmed = [this] { return board.alarmed(); },
                                      .abort = [this](const FailedWait& wait) { end(wait); }});
  }
  ~NcclConnections() {
    watch_.reset();
    if (failed) group.release();  // it would wait for its kernels; the process is about to end
  }

  void watch(const c10::intrusive_ptr<c10d::Work>& work, const FailedWait& wait) {
    watch_->watch(
        [work] {
          const bool over = work->isCompleted();  // learns of an exception, too
          if (work->exception()) return DeviceWatch::State::kLost;
          return over ? DeviceWatch::State::kOver : DeviceWatch::State::kUnderWay;
        },
        wait);
  }
  /// The verdict; the device waits no longer.
  std::string end(const FailedWait& wait) {
    std::string why = board.judge(wait);
    if (!failed.exchange(true)) group->abort();
    return why;
  }
  [[noreturn]] void fail(const FailedWait& wait) {
    const std::string why = end(wait);
    throw Error(ErrorKind::kComm, "{}{}", why, watch_->failure());
  }

  const int rank, size, device;
  const double timeout_s;
  Board board;
  c10::intrusive_ptr<c10d::Backend> group;
  std::atomic<bool> failed = false;

 private:
  std::optional<DeviceWatch> watch_;
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

void check_nccl_built() {}

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

void check_nccl_built() {
  throw Error(ErrorKind::kConfig,
              "this build has no NCCL: {}; ranks as threads need none (comm.backend=threads)",
              DISTCA_WITHOUT_NCCL);
}

std::unique_ptr<Communicator> make_nccl_group(const Rendezvous&, const CommOptions&, int) {
  check_nccl_built();
  return nullptr;
}

}  // namespace distca

#endif
