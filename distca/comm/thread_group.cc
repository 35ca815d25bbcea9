#include "distca/comm/thread_group.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/comm/health/diagnosis.h"

namespace distca {
namespace {

/// The messages one exchange() issued; guarded by the group's mutex.
struct Issued {
  int rank = 0;
  Activity at;
  std::multiset<int> open_sends, open_receives;  // peers of messages that have not arrived yet
  int copying = 0;   // messages of ours that some thread is copying right now
  DeviceMark ready;  // behind it the messages' memory may be read and written
  // Ends of copies that our thread's part of the device does not follow yet.
  std::vector<DeviceMark> sent, received;
};

struct Side {  // a send or a receive that waits for its other half
  std::shared_ptr<Issued> owner;
  Message message;
};

/// Mailboxes of all pairs. Whoever issues the second half of a message copies it, outside the
/// mutex.
class ThreadGroup {
 public:
  ThreadGroup(int size, const CommOptions& options, const ThreadDevice& device)
      : options_(options), device_(device), news_(size), waits_(size) {
    DISTCA_CHECK(size > 0, "{} ranks", size);
  }

  int size() const { return static_cast<int>(news_.size()); }
  int cuda_device() const { return device_.cuda_device; }

  std::shared_ptr<Issued> issue(int rank, std::span<const Message> sends,
                                std::span<const Message> receives, std::string_view operation);
  /// For the receives, or for everything.
  void wait(const std::shared_ptr<Issued>& issued, bool sends_too);
  /// Makes sure that nobody touches the messages' memory any more.
  void withdraw(const std::shared_ptr<Issued>& issued);
  void set_step(int rank, int64_t step);
  /// The rank will issue nothing any more.
  void retire(int rank, RankState state);

 private:
  struct Box {
    // The sides of one (source, target, tag). At most one of the two is not empty.
    std::deque<Side> sends, receives;
  };
  using Key = std::tuple<int, int, uint32_t>;

  /// For whom a rank waits; nothing while it does not.
  struct Wait {
    std::shared_ptr<Issued> issued;
    bool sends_too = false;

    std::vector<int> peers() const {
      if (!issued) return {};
      std::set<int> open(issued->open_receives.begin(), issued->open_receives.end());
      if (sends_too) open.insert(issued->open_sends.begin(), issued->open_sends.end());
      return {open.begin(), open.end()};
    }
  };

  void offer(const Key& key, Side side, std::deque<Side> Box::*mine, std::deque<Side> Box::*other);
  std::string diagnose(const Wait& wait, double waited_s) const;
  std::optional<std::string> copy(const Side& send, const Side& receive, DeviceMark* end) const;
  void follow(const std::vector<DeviceMark>& marks) const;
  void fail(std::string why);

  const CommOptions options_;
  const ThreadDevice device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Box> boxes_;
  std::vector<RankNews> news_;
  std::vector<Wait> waits_;  // [rank]
  std::optional<std::string> failure_;
};

std::shared_ptr<Issued> ThreadGroup::issue(int rank, std::span<const Message> sends,
                                           std::span<const Message> receives,
                                           std::string_view operation) {
  auto issued = std::make_shared<Issued>();
  issued->rank = rank;
  {
    std::lock_guard lock(mutex_);
    if (failure_) throw Error(ErrorKind::kComm, "{}", *failure_);
    news_[rank].last.operation = operation;
    issued->at = news_[rank].last;
    for (const Message& message : sends) issued->open_sends.insert(message.peer);
    for (const Message& message : receives) issued->open_receives.insert(message.peer);
  }
  try {
    if (device_.mark) issued->ready = device_.mark();
    for (const Message& message : receives) {
      offer({message.peer, rank, message.tag}, {issued, message}, &Box::receives, &Box::sends);
    }
    for (const Message& message : sends) {
      offer({rank, message.peer, message.tag}, {issued, message}, &Box::sends, &Box::receives);
    }
  } catch (...) {
    withdraw(issued);
    throw;
  }
  return issued;
}

void ThreadGroup::offer(const Key& key, Side side, std::deque<Side> Box::*mine,
                        std::deque<Side> Box::*other) {
  const int peer = side.message.peer;
  DISTCA_CHECK(peer >= 0 && peer < size() && peer != side.owner->rank, "peer {} of rank {}", peer,
               side.owner->rank);
  DISTCA_CHECK(side.message.bytes > 0, "empty message to or from rank {}", peer);
  std::unique_lock lock(mutex_);
  auto box = boxes_.try_emplace(key).first;
  if ((box->second.*other).empty()) {
    (box->second.*mine).push_back(std::move(side));
    return;
  }
  const Side match = std::move((box->second.*other).front());
  (box->second.*other).pop_front();
  if ((box->second.*other).empty()) boxes_.erase(box);
  DISTCA_CHECK(side.message.bytes == match.message.bytes,
               "rank {} and rank {} disagree on a message of tag {}: {} against {} bytes",
               side.owner->rank, peer, side.message.tag, side.message.bytes, match.message.bytes);
  ++side.owner->copying;
  ++match.owner->copying;
  lock.unlock();
  const Side& send = mine == &Box::sends ? side : match;
  const Side& receive = mine == &Box::sends ? match : side;
  DeviceMark end;
  const std::optional<std::string> why_not = copy(send, receive, &end);
  lock.lock();
  --side.owner->copying;
  --match.owner->copying;
  if (why_not) {
    fail(fmt::format("rank {} could not copy a message of rank {} in {}: {}", side.owner->rank,
                     match.owner->rank, to_string(side.owner->at), *why_not));
    throw Error(ErrorKind::kComm, "{}", *failure_);
  }
  send.owner->open_sends.extract(send.message.peer);
  receive.owner->open_receives.extract(receive.message.peer);
  if (end) {
    send.owner->sent.push_back(end);
    receive.owner->received.push_back(end);
  }
  changed_.notify_all();
}

/// None if the bytes have arrived, or will on the device, else why not, in one line. Never throws:
/// its caller has promised the owners that it will be over.
std::optional<std::string> ThreadGroup::copy(const Side& send, const Side& receive,
                                             DeviceMark* end) const {
  std::byte* const to = receive.message.data;
  const std::byte* const from = send.message.data;
  if (!device_.copy) {
    std::memcpy(to, from, static_cast<size_t>(send.message.bytes));
    return std::nullopt;
  }
  try {
    *end = device_.copy(to, from, send.message.bytes, send.owner->ready, receive.owner->ready);
    return std::nullopt;
  } catch (const std::exception& error) {
    return first_line(error);
  } catch (...) {
    return "an unknown error";
  }
}

void ThreadGroup::follow(const std::vector<DeviceMark>& marks) const {
  for (const DeviceMark& mark : marks) device_.follow(mark);
}

void ThreadGroup::wait(const std::shared_ptr<Issued>& issued, bool sends_too) {
  std::unique_lock lock(mutex_);
  const Stopwatch watch;
  auto arrived = [&] {
    return issued->open_receives.empty() && (!sends_too || issued->open_sends.empty());
  };
  auto over = [&] { return arrived() || failure_; };
  Wait& mine = waits_[issued->rank];
  mine = {issued, sends_too};
  if (!changed_.wait_for(lock, std::chrono::duration<double>(options_.timeout_s), over)) {
    fail(diagnose(mine, watch.seconds()));
  }
  mine = {};
  if (!arrived()) throw Error(ErrorKind::kComm, "{}", *failure_);
  const std::vector<DeviceMark> received = std::exchange(issued->received, {});
  const std::vector<DeviceMark> sent =
      sends_too ? std::exchange(issued->sent, {}) : std::vector<DeviceMark>();
  lock.unlock();
  follow(received);
  follow(sent);
}

std::string ThreadGroup::diagnose(const Wait& wait, double waited_s) const {
  std::vector<RankNews> news = news_;
  for (int rank = 0; rank < size(); ++rank) news[rank].awaits = waits_[rank].peers();
  return diagnosis({.rank = wait.issued->rank,
                    .at = wait.issued->at,
                    .waited_s = waited_s,
                    .peers = wait.peers()},
                   std::move(news));
}

void ThreadGroup::withdraw(const std::shared_ptr<Issued>& issued) {
  std::unique_lock lock(mutex_);
  auto is_ours = [&](const Side& side) { return side.owner == issued; };
  for (auto box = boxes_.begin(); box != boxes_.end();) {
    std::erase_if(box->second.sends, is_ours);
    std::erase_if(box->second.receives, is_ours);
    box = box->second.sends.empty() && box->second.receives.empty() ? boxes_.erase(box)
                                                                    : std::next(box);
  }
  changed_.wait(lock, [&] { return issued->copying == 0; });
  // The memory is not used again before copies that the device has still to do.
  lock.unlock();
  try {
    follow(issued->received);
    follow(issued->sent);
  } catch (const std::exception&) {
    // The device is lost: whoever uses it next gets the error.
  }
}

void ThreadGroup::set_step(int rank, int64_t step) {
  std::lock_guard lock(mutex_);
  news_[rank].last.step = step;
}

void ThreadGroup::retire(int rank, RankState state) {
  std::lock_guard lock(mutex_);
  if (news_[rank].state != RankState::kLive) return;
  news_[rank].state = state;
  if (state == RankState::kFailed) {
    fail(fmt::format("rank {} ended with an error (last seen: {})", rank,
                     to_string(news_[rank].last)));
  }
}

void ThreadGroup::fail(std::string why) {
  if (!failure_) failure_ = std::move(why);
  changed_.notify_all();
}

class ThreadExchange final : public PendingExchange {
 public:
  ThreadExchange(std::shared_ptr<ThreadGroup> group, std::shared_ptr<Issued> issued)
      : group_(std::move(group)), issued_(std::move(issued)) {}

  ~ThreadExchange() override {
    wait_at_last();
    group_->withdraw(issued_);
  }

  void wait_received() override { group_->wait(issued_, /*sends_too=*/false); }
  void wait() override { group_->wait(issued_, /*sends_too=*/true); }

 private:
  std::shared_ptr<ThreadGroup> group_;
  std::shared_ptr<Issued> issued_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~ThreadCommunicator() override { retire(RankState::kFinished); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  int cuda_device() const override { return group_->cuda_device(); }
  void set_step(int64_t step) override { group_->set_step(rank_, step); }
  void retire(RankState state) { group_->retire(rank_, state); }

  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    return std::make_unique<ThreadExchange>(group_,
                                            group_->issue(rank_, sends, receives, operation));
  }

 private:
  std::shared_ptr<ThreadGroup> group_;
  int rank_;
};

/// How the threads of run_ranks end.
class Ending {
 public:
  explicit Ending(int size) : size_(size), running_(size) {}

  /// Before the others learn of it: their failures follow from this one.
  void fail(std::exception_ptr why) {
    std::lock_guard lock(mutex_);
    if (!first_) first_ = std::move(why);
    changed_.notify_all();
  }
  void end(int ranks = 1) {
    std::lock_guard lock(mutex_);
    running_ -= ranks;
    changed_.notify_all();
  }
  /// Returns when all have ended. After a failure they have the grace period for it: a thread
  /// cannot be ended, so the process is.
  void wait(double grace_s) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_ == 0 || first_; });
    if (changed_.wait_for(lock, std::chrono::duration<double>(grace_s),
                          [&] { return running_ == 0; })) {
      return;
    }
    const ExitMessage words = exit_message(first_);
    say_last(fmt::format("{} ({} of {} threads still computed)", words.line, running_, size_));
    _exit(words.exit_code);
  }
  const std::exception_ptr& first() const { return first_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const int size_;
  int running_;
  std::exception_ptr first_;
};

}  // namespace

void run_ranks(int size, const CommOptions& options, const std::function<void(Communicator&)>& body,
               const ThreadDevice& device) {
  const auto group = std::make_shared<ThreadGroup>(size, options, device);
  std::vector<std::unique_ptr<ThreadCommunicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  Ending ending(size);
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (auto& rank : ranks) {
    try {
      threads.emplace_back([&, communicator = rank.get()] {
        try {
          const std::shared_ptr<void> of_thread = device.begin_rank ? device.begin_rank() : nullptr;
          body(*communicator);
          communicator->retire(RankState::kFinished);
        } catch (...) {
          ending.fail(std::current_exception());
          communicator->retire(RankState::kFailed);
        }
        ending.end();
      });
    } catch (const std::exception& error) {
      ending.fail(std::make_exception_ptr(Error(ErrorKind::kIo,
                                                "cannot start rank {} of {} as a thread: {}",
                                                rank->rank(), size, error.what())));
      rank->retire(RankState::kFailed);
      ending.end(size - static_cast<int>(threads.size()));
      break;
    }
  }
  ending.wait(options.grace_s);
  for (std::thread& thread : threads) thread.join();
  if (ending.first()) std::rethrow_exception(ending.first());
}

}  // namespace distca
