#include "distca/comm/nccl/nccl_connections.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/health/startup.h"
#include "distca/comm/hushed_cerr.h"
#include "distca/comm/launch/run_store.h"

namespace distca {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kReturn = 2;         // seconds that a call of NCCL may take to return at the end
constexpr double kFirstPause = 1e-3;  // seconds between two looks
constexpr double kLastPause = 0.1;
constexpr const char* kIdKey = "id";
constexpr const char* kLeftKey = "left";

/// Rank 0's, which it makes.
NcclUniqueId shared_id(const NcclLibrary& nccl, int rank, c10d::Store& store) {
  NcclUniqueId id{};
  if (rank == 0) {
    nccl.check(nccl.get_unique_id(&id), nullptr, "ncclGetUniqueId");
    store.set(kIdKey, std::string(id.internal, sizeof(id.internal)));
    return id;
  }
  const std::string bytes = store.get_to_str(kIdKey);
  if (bytes.size() != sizeof(id.internal))
    throw std::runtime_error("rank 0 has another version of distca");
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

/// NCCL itself says of the second rank on a device only that an argument is wrong, and only where
/// both are on one machine's bus.
void refuse_shared_device(const NcclDevice& device, int rank, c10d::Store& store) {
  if (device.identity.empty()) return;
  const std::string mine = std::to_string(rank);
  const std::string owner = store.compareSet("device/" + device.identity, "", mine);
  DISTCA_THROW_IF(
      owner != mine, ErrorKind::kConfig,
      "rank {} and rank {} have the same CUDA device: NCCL takes one rank a device; start as many "
      "ranks on a machine as it has devices, each on its own (in Python: "
      "torch.cuda.set_device(LOCAL_RANK)), or set comm.backend=threads, where ranks share one",
      owner, rank);
}

/// NCCL connects a pair at its first message, and holds the host until it has.
void exchange_with_everyone(NcclConnections& connections, int rank, int size) {
  const NcclDevice& device = connections.device();
  const std::shared_ptr<std::byte> memory = device.allocate(2 * size);
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    sends.push_back({.peer = peer, .data = memory.get() + peer, .bytes = 1});
    receives.push_back({.peer = peer, .data = memory.get() + size + peer, .bytes = 1});
  }
  connections.issue(sends, receives);
  const DeviceMark end = device.mark_communication();
  double pause = kFirstPause;
  while (!device.has_passed(end)) {
    if (const auto error = connections.error()) throw std::runtime_error(*error);
    std::this_thread::sleep_for(Seconds(pause));
    pause = std::min(2 * pause, kLastPause);
  }
  if (const auto error = connections.error()) throw std::runtime_error(*error);
}

std::vector<Message> in_order(std::span<const Message> messages) {
  std::vector<Message> ordered(messages.begin(), messages.end());
  std::ranges::stable_sort(ordered, {}, &Message::tag);
  return ordered;
}

}  // namespace

OpenStore store_of(const Rendezvous& rendezvous) {
  return [rendezvous](double timeout_s) { return connect_to_store(rendezvous, timeout_s, "nccl"); };
}

OpenStore store_like(c10d::Store& made, const std::string& prefix) {
  return [kept = keep_store(made), prefix](double timeout_s) {
    const c10::intrusive_ptr<c10d::Store> own = kept->clone();
    own->setTimeout(to_milliseconds(std::max(timeout_s, 0.001)));
    return keep_store(*c10::make_intrusive<c10d::PrefixStore>(prefix + "nccl", own));
  };
}

NcclConnections::NcclConnections(const NcclLibrary& nccl, const NcclDevice& device,
                                 const Rendezvous& rendezvous, c10d::Store& store)
    : nccl_(nccl), device_(device) {
  const auto [rank, size] = std::pair(rendezvous.rank, rendezvous.size);
  refuse_shared_device(device, rank, store);
  const NcclUniqueId id = shared_id(nccl, rank, store);
  nccl_.check(nccl_.comm_init_rank(&comm_, size, id, rank), nullptr, "ncclCommInitRank");
  try {
    exchange_with_everyone(*this, rank, size);
  } catch (const std::exception&) {
    abort();  // or the device goes on waiting for the others
    throw;
  }
}

void NcclConnections::issue(std::span<const Message> sends, std::span<const Message> receives) {
  const std::lock_guard lock(in_use_);
  if (gone_) throw std::runtime_error("the connections have been ended");
  nccl_.check(nccl_.group_start(), comm_, "ncclGroupStart");
  const auto give = [&](std::span<const Message> messages, auto function) {
    for (const Message& message : in_order(messages)) {
      const int result = function(message.data, static_cast<size_t>(message.bytes), kNcclUint8,
                                  message.peer, comm_, device_.stream);
      if (result != kNcclSuccess) return result;
    }
    return kNcclSuccess;
  };
  const int received = give(receives, nccl_.recv);
  const int sent = received == kNcclSuccess ? give(sends, nccl_.send) : kNcclSuccess;
  const int ended = nccl_.group_end();  // also where a call in the group has failed
  nccl_.check(received, comm_, "ncclRecv");
  nccl_.check(sent, comm_, "ncclSend");
  nccl_.check(ended, comm_, "ncclGroupEnd");
}

std::optional<std::string> NcclConnections::error() const {
  int result = kNcclSuccess;
  const int asked = nccl_.comm_get_async_error(comm_, &result);
  if (asked != kNcclSuccess) result = asked;
  if (result == kNcclSuccess || result == kNcclInProgress) return std::nullopt;
  return "NCCL: " + nccl_.describe(result, comm_);
}

void NcclConnections::abort() {
  // A thread that NCCL holds within a call comes back by the abort alone.
  std::unique_lock lock(in_use_, std::defer_lock);
  lock.try_lock_for(Seconds(1));
  if (gone_.exchange(true)) return;
  if (device_.make_current) device_.make_current();
  nccl_.comm_abort(comm_);
}

void NcclConnections::finish() {
  const std::lock_guard lock(in_use_);
  if (gone_.exchange(true)) return;
  if (device_.make_current) device_.make_current();
  nccl_.check(nccl_.comm_finalize(comm_), comm_, "ncclCommFinalize");
  nccl_.check(nccl_.comm_destroy(comm_), nullptr, "ncclCommDestroy");
}

std::shared_ptr<NcclConnections> connect_nccl(const NcclLibrary& nccl, const NcclDevice& device,
                                              const Rendezvous& rendezvous, const OpenStore& open,
                                              Heartbeat& heartbeat) {
  const auto made = std::make_shared<std::shared_ptr<NcclConnections>>();
  connect_by_deadline(
      rendezvous, heartbeat,
      [=](double timeout_s) {
        if (device.make_current) device.make_current();
        const auto store = open(timeout_s);
        *made = std::make_shared<NcclConnections>(nccl, device, rendezvous, *store);
      },
      [] { return "cannot connect through NCCL"; });
  return *made;
}

void leave_nccl(std::shared_ptr<NcclConnections> connections, const Rendezvous& rendezvous,
                const OpenStore& open, const Heartbeat& heartbeat, bool is_well,
                double patience_s) {
  // A thread of its own, which is left behind if the store or NCCL does not return.
  const auto over = std::make_shared<std::atomic<bool>>(!is_well);
  const auto done = std::make_shared<std::promise<void>>();
  std::future<void> is_done = done->get_future();
  std::thread([=, connections = std::move(connections)] {
    try {
      const HushedCerr hushed;  // c10d prints a lot if the store is gone
      const auto store = open(kReturn);
      store->add(kLeftKey, 1);
      // Until all ranks have come here, or somebody is known to be lost.
      double pause = kFirstPause;
      const Stopwatch waiting;
      while (!*over && store->add(kLeftKey, 0) < rendezvous.size &&
             waiting.seconds() < patience_s) {
        std::this_thread::sleep_for(Seconds(pause));
        pause = std::min(2 * pause, kLastPause);
      }
    } catch (const std::exception&) {
      // The run's store is gone, and with it the run.
    }
    try {
      *over ? connections->abort() : connections->finish();
    } catch (const std::exception&) {
      // All that this rank wanted has been done.
    }
    done->set_value();
  }).detach();
  const Stopwatch watch;
  while (is_done.wait_for(Seconds(kLastPause / 4)) != std::future_status::ready) {
    if (heartbeat.alarmed() || watch.seconds() > patience_s) *over = true;
    if (*over && is_done.wait_for(Seconds(kReturn)) == std::future_status::timeout) return;
  }
}

}  // namespace distca
