#include "distca/comm/c10d_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <new>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/gloo_loop.h"
#include "distca/comm/health/health.h"

namespace distca {
namespace {

constexpr std::chrono::milliseconds kNever = std::chrono::hours(24);
constexpr const char* kPrefix = "distca/";

/// A send or a receive under way.
struct Pending {
  c10::intrusive_ptr<c10d::Work> work;
  int peer = 0;
};

/// The state of a rank in the group, shared with its exchanges.
struct Connections {
  ~Connections() {
    // The destructor of a failed group may wait for what will never come. The process is about to
    // end; the system closes its connections.
    if (failed) group.release();
  }

  [[noreturn]] void fail(const FailedWait& wait) {
    failed = true;
    throw Error(ErrorKind::kComm, "{}", health->heartbeat.diagnose(wait));
  }

  const std::unique_ptr<Health> health;
  const GlooLoop loop;
  c10::intrusive_ptr<c10d::Backend> group;
  bool failed = false;
};

class C10dExchange final : public PendingExchange {
 public:
  /// The first `num_receives` of `pending` are receives.
  C10dExchange(std::shared_ptr<Connections> connections, Activity at, std::vector<Pending> pending,
               size_t num_receives)
      : connections_(std::move(connections)),
        at_(std::move(at)),
        pending_(std::move(pending)),
        num_receives_(num_receives) {}

  ~C10dExchange() override { wait_at_last(); }

  void wait_received() override { wait_for_first(num_receives_); }
  void wait() override { wait_for_first(pending_.size()); }

 private:
  void wait_for_first(size_t count) {
    if (count == 0) return;
    // Gone when this throws: the backend then no longer touches the messages' memory.
    std::vector<Pending> pending = std::exchange(pending_, {});
    num_receives_ = 0;
    Heartbeat& heartbeat = connections_->health->heartbeat;
    Watchdog& watchdog = *connections_->health->watchdog;
    FailedWait failed{.rank = connections_->group->getRank()};
    size_t done = 0;
    watchdog.begin([&pending] {
      for (const Pending& one : pending) one.work->abort();
    });
    try {
      for (; done < count; ++done) {
        heartbeat.await({&pending[done].peer, 1});
        if (!pending[done].work->wait(kNever)) break;
      }
    } catch (const std::exception& error) {
      failed.end = WaitEnd::kConnectionLost;
      failed.why = first_line(error);
    }
    failed.waited_s = watchdog.end();
    // Nobody can say whether the messages behind this one have come. Our heartbeat goes on showing
    // whom we awaited: others may be asking.
    if (done < count) {
      failed.at = at_;
      failed.peers = {pending[done].peer};
      connections_->fail(failed);
    }
    heartbeat.await({});
    pending_.assign(pending.begin() + static_cast<std::ptrdiff_t>(count), pending.end());
  }

  std::shared_ptr<Connections> connections_;
  Activity at_;
  std::vector<Pending> pending_;  // receives, then sends, that were not waited for
  size_t num_receives_;           // in pending_
};

class C10dCommunicator : public Communicator {
 public:
  explicit C10dCommunicator(std::shared_ptr<Connections> connections)
      : connections_(std::move(connections)) {}

  int rank() const override { return connections_->group->getRank(); }
  int size() const override { return connections_->group->getSize(); }
  void set_step(int64_t step) override { connections_->health->heartbeat.set_step(step); }

  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    Heartbeat& heartbeat = connections_->health->heartbeat;
    const Activity at = heartbeat.begin(operation);
    if (heartbeat.alarmed()) connections_->fail({.rank = rank(), .at = at});
    std::vector<Pending> pending;
    pending.reserve(sends.size() + receives.size());
    int peer = 0;
    const auto post = [&](const Message& message, auto method) {
      std::vector<at::Tensor> bytes = as_tensor(message);
      peer = message.peer;
      auto work = (*connections_->group.*method)(bytes, peer, static_cast<int>(message.tag));
      pending.push_back({std::move(work), peer});
    };
    try {
      const GlooLoop::HeldBack held_back(connections_->loop);
      // Receives first: a send then finds its receive waiting and need not be announced.
      for (const Message& message : receives) post(message, &c10d::Backend::recv);
      for (const Message& message : sends) post(message, &c10d::Backend::send);
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
    return std::make_unique<C10dExchange>(connections_, at, std::move(pending), receives.size());
  }

 private:
  std::vector<at::Tensor> as_tensor(const Message& message) const {
    DISTCA_CHECK(message.peer >= 0 && message.peer < size() && message.peer != rank(),
                 "peer {} of rank {}", message.peer, rank());
    DISTCA_CHECK(message.bytes > 0 && message.tag < (1u << 31), "{} bytes, tag {}", message.bytes,
                 message.tag);
    return {at::from_blob(message.data, {message.bytes}, at::kByte)};
  }

  std::shared_ptr<Connections> connections_;
};

}  // namespace

std::unique_ptr<Communicator> make_c10d_group(c10d::Backend& group, c10d::Store& store,
                                              const CommOptions& options,
                                              std::function<bool()> is_over) {
  const Rendezvous rendezvous{.rank = group.getRank(), .size = group.getSize(), .prefix = kPrefix};
  auto health = std::make_unique<Health>(rendezvous, options, &store, std::move(is_over));
  health->heartbeat.wait_for_all();  // all ranks have made `group`, so they are connected
  health->heartbeat.end_startup();
  return make_c10d_group(group, std::move(health), {});
}

std::unique_ptr<Communicator> make_c10d_group(c10d::Backend& group, std::unique_ptr<Health> health,
                                              const GlooLoop& loop) {
  using Owner = c10::intrusive_ptr<c10d::Backend>;
  return std::make_unique<C10dCommunicator>(std::shared_ptr<Connections>(
      new Connections{.health = std::move(health),
                      .loop = loop,
                      .group = Owner::unsafe_reclaim_from_nonowning(&group)}));
}

}  // namespace distca
