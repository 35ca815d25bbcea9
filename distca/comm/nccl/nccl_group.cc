#include "distca/comm/nccl/nccl_group.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/health/health.h"
#include "distca/comm/nccl/nccl_connections.h"
#include "distca/comm/nccl/nccl_watch.h"

namespace distca {
namespace {

constexpr const char* kPrefix = "distca/";  // keys in a store made elsewhere begin with it
constexpr double kLook = 0.05;  // seconds a host that waits goes without asking for a failure

/// The state of a rank in the group, shared with its exchanges.
class NcclRank {
 public:
  /// `made`: a store made elsewhere, or null for the one that the rendezvous names.
  NcclRank(const Rendezvous& rendezvous, c10d::Store* made, const CommOptions& options,
           const NcclLibrary& nccl, const NcclDevice& device,
           std::function<bool()> is_over = nullptr)
      : rendezvous_(rendezvous),
        open_(made ? store_like(*made, rendezvous.prefix) : store_of(rendezvous)),
        options_(options),
        health_(rendezvous, options, made, std::move(is_over)) {
    Heartbeat& heartbeat = health_.heartbeat;
    heartbeat.wait_for_all();
    connections_ = connect_nccl(nccl, device, rendezvous, open_, heartbeat);
    heartbeat.end_startup();
    watch_ = std::make_unique<NcclWatch>(rendezvous.rank, options, connections_, health_);
  }

  ~NcclRank() {
    bool is_well = std::uncaught_exceptions() == exceptions_;
    if (is_well) is_well = wait_until_idle();
    watch_.reset();
    leave_nccl(std::move(connections_), rendezvous_, open_, health_.heartbeat, is_well,
               options_.startup_timeout_s);
  }

  int rank() const { return rendezvous_.rank; }
  int size() const { return rendezvous_.size; }
  const NcclDevice& device() const { return connections_->device(); }
  NcclConnections& connections() { return *connections_; }
  Heartbeat& heartbeat() { return health_.heartbeat; }
  NcclWatch& watch() { return *watch_; }

  void throw_if_failed() const {
    if (const auto why = watch_->failure()) throw Error(ErrorKind::kComm, "{}", *why);
  }
  [[noreturn]] void fail(const FailedWait& wait) {
    throw Error(ErrorKind::kComm, "{}", watch_->end(wait));
  }

 private:
  /// False if the group has failed, or the device is lost, which throws when it is asked.
  bool wait_until_idle() {
    try {
      while (!watch_->failure() && !watch_->is_idle())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      return false;
    }
    return !watch_->failure();
  }

  const Rendezvous rendezvous_;
  const OpenStore open_;
  const CommOptions options_;
  Health health_;
  std::shared_ptr<NcclConnections> connections_;
  std::unique_ptr<NcclWatch> watch_;
  const int exceptions_ = std::uncaught_exceptions();
};

class NcclExchange final : public PendingExchange {
 public:
  NcclExchange(std::shared_ptr<NcclRank> group, std::shared_ptr<NcclWatch::Exchange> issued,
               DeviceMark end)
      : group_(std::move(group)), issued_(std::move(issued)), end_(std::move(end)) {}

  ~NcclExchange() override { wait_at_last(); }

  // NCCL ends the sends and receives of a group together.
  void wait_received() override { wait(); }

  void wait() override {
    group_->throw_if_failed();
    if (!issued_) return;
    const std::shared_ptr<NcclWatch::Exchange> issued = std::exchange(issued_, nullptr);
    const NcclDevice& device = group_->device();
    group_->watch().wait_for(*issued, device.mark());
    while (!device.follow(end_, kLook)) group_->throw_if_failed();
    group_->throw_if_failed();  // an abort ends the exchange, too
  }

 private:
  const std::shared_ptr<NcclRank> group_;
  std::shared_ptr<NcclWatch::Exchange> issued_;  // null without messages, or once waited for
  const DeviceMark end_;
};

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::shared_ptr<NcclRank> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  int cuda_device() const override { return group_->device().cuda_device; }
  bool ends_in_order() const override { return true; }
  void set_step(int64_t step) override { group_->heartbeat().set_step(step); }
  void throw_if_failed() const override { group_->throw_if_failed(); }

  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    const Activity at = group_->heartbeat().begin(operation);
    group_->throw_if_failed();
    if (group_->heartbeat().alarmed()) group_->fail({.rank = rank(), .at = at});
    std::vector<int> peers;
    for (const std::span<const Message> messages : {receives, sends}) {
      for (const Message& message : messages) {
        check(message);
        peers.push_back(message.peer);
      }
    }
    if (peers.empty()) return std::make_unique<NcclExchange>(group_, nullptr, nullptr);
    std::ranges::sort(peers);
    const auto twice = std::ranges::unique(peers);
    peers.erase(twice.begin(), twice.end());
    const NcclDevice& device = group_->device();
    device.communicate_behind(device.mark());
    auto exchange = group_->watch().begin(at, peers);
    try {
      group_->connections().issue(sends, receives);
    } catch (const std::runtime_error& error) {
      group_->fail({.rank = rank(),
                    .at = at,
                    .peers = std::move(peers),
                    .end = WaitEnd::kConnectionLost,
                    .why = "NCCL: " + first_line(error)});
    }
    const DeviceMark end = device.mark_communication();
    group_->watch().issued(*exchange, end);
    return std::make_unique<NcclExchange>(group_, std::move(exchange), end);
  }

 private:
  void check(const Message& message) const {
    DISTCA_CHECK(message.peer >= 0 && message.peer < size() && message.peer != rank(),
                 "peer {} of rank {}", message.peer, rank());
    DISTCA_CHECK(message.bytes > 0, "{} bytes", message.bytes);
  }

  const std::shared_ptr<NcclRank> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_group(const Rendezvous& rendezvous,
                                              const CommOptions& options, const NcclLibrary& nccl,
                                              const NcclDevice& device) {
  return std::make_unique<NcclCommunicator>(
      std::make_shared<NcclRank>(rendezvous, nullptr, options, nccl, device));
}

std::unique_ptr<Communicator> make_nccl_group(c10d::Store& store, int rank, int size,
                                              const CommOptions& options, const NcclLibrary& nccl,
                                              const NcclDevice& device,
                                              std::function<bool()> is_over) {
  const Rendezvous rendezvous{.rank = rank, .size = size, .prefix = kPrefix};
  return std::make_unique<NcclCommunicator>(
      std::make_shared<NcclRank>(rendezvous, &store, options, nccl, device, std::move(is_over)));
}

}  // namespace distca
