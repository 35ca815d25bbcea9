#include "distca/comm/test_nccl/group.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <thread>

#include "distca/comm/test_nccl/faults.h"

namespace standin {
namespace {

constexpr auto kRetry = std::chrono::milliseconds(2);
constexpr auto kPatience = std::chrono::seconds(300);

/// A socket of Linux's abstract names, which need no file.
struct Address {
  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    std::copy_n(name.begin(), std::min(name.size(), sizeof(address.sun_path) - 1),
                address.sun_path + 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t length = 0;
};

int open_socket(int more) { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | more, 0); }

}  // namespace

Group::~Group() {
  for (const std::vector<int>* sockets : {&out_, &in_}) {
    for (const int one : *sockets) {
      if (one >= 0) close(one);
    }
  }
  if (wake_ >= 0) close(wake_);
}

bool Group::connect(const std::string& name) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto late = [&] { return std::chrono::steady_clock::now() > deadline; };
  while (hangs_at_start(rank_) && !late()) std::this_thread::sleep_for(kRetry);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const int listener = open_socket(SOCK_NONBLOCK);
  const Address own(name + "/" + std::to_string(rank_));
  if (bind(listener, own.get(), own.length) != 0 || listen(listener, size()) != 0) {
    close(listener);
    return false;
  }
  int open = 2 * (size() - 1);
  while (open > 0 && !late()) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_ || out_[peer] >= 0) continue;
      const Address theirs(name + "/" + std::to_string(peer));
      const int made = open_socket(0);
      if (::connect(made, theirs.get(), theirs.length) == 0 &&
          write(made, &rank_, sizeof(rank_)) == sizeof(rank_)) {
        out_[peer] = made;
        --open;
      } else {
        close(made);
      }
    }
    int peer = -1;
    const int taken = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (taken >= 0 && read(taken, &peer, sizeof(peer)) == sizeof(peer)) {
      in_[peer] = taken;
      --open;
    } else {
      if (taken >= 0) close(taken);
      std::this_thread::sleep_for(kRetry);
    }
  }
  close(listener);
  return open == 0;
}

/// Transfers under way: of each peer and direction the first one, as those of NCCL.
class Group::Play {
 public:
  Play(Group& group, const std::vector<Transfer>& transfers) : group_(group) {
    for (const Transfer& one : transfers) {
      Line& line = lines_[{one.peer, one.sends}];
      line.socket = one.sends ? group.out_[one.peer] : group.in_[one.peer];
      line.waiting.push_back({.transfer = one});
    }
  }

  void run() {
    while (!lines_.empty() && !group_.aborted_ && group_.error_ == kSuccess) {
      std::vector<pollfd> polled = {{.fd = group_.wake_, .events = POLLIN, .revents = 0}};
      for (const auto& [key, line] : lines_) {
        const bool writes = key.second && !line.waiting.front().all_written();
        polled.push_back({.fd = line.socket,
                          .events = static_cast<short>(writes ? POLLOUT : POLLIN),
                          .revents = 0});
      }
      poll(polled.data(), polled.size(), 100);
      size_t at = 1;
      for (auto next = lines_.begin(); next != lines_.end(); ++at) {
        auto& [key, line] = *next;
        if (polled[at].revents != 0) key.second ? send(line) : receive(line);
        next = line.waiting.empty() ? lines_.erase(next) : std::next(next);
      }
    }
  }

 private:
  struct Underway {
    bool all_written() const { return done == sizeof(uint64_t) + transfer.bytes; }
    Transfer transfer;
    size_t done = 0;  // bytes moved, of those that say how many follow and of those that follow
    uint64_t bytes = 0;
  };
  struct Line {
    int socket = -1;
    std::deque<Underway> waiting;
  };

  /// Returns the bytes that a system call has moved: 0 if it would have to wait, or has failed.
  size_t moved(ssize_t result, const Underway& one) {
    if (result > 0) return static_cast<size_t>(result);
    if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
    group_.set_error(kRemoteError, "rank " + std::to_string(one.transfer.peer) +
                                       " has ended or its connection is broken");
    return 0;
  }

  /// Where the next byte of a transfer lies, and how many are left from there.
  static std::pair<std::byte*, size_t> rest(Underway& one) {
    if (one.done < sizeof(one.bytes))
      return {reinterpret_cast<std::byte*>(&one.bytes) + one.done, sizeof(one.bytes) - one.done};
    const size_t done = one.done - sizeof(one.bytes);
    return {one.transfer.data + done, one.transfer.bytes - done};
  }

  void send(Line& line) {
    Underway& one = line.waiting.front();
    one.bytes = one.transfer.bytes;
    if (!one.all_written()) {
      const auto [data, bytes] = rest(one);
      one.done += moved(::send(line.socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT), one);
      return;
    }
    char answer = 0;
    if (moved(recv(line.socket, &answer, 1, MSG_DONTWAIT), one) == 0) return;
    if (answer != 'y') return mismatch(one, "receives another number of bytes");
    line.waiting.pop_front();
  }

  void receive(Line& line) {
    Underway& one = line.waiting.front();
    const auto [data, bytes] = rest(one);
    one.done += moved(recv(line.socket, data, bytes, MSG_DONTWAIT), one);
    if (one.done < sizeof(one.bytes)) return;
    if (one.bytes != one.transfer.bytes) {
      ::send(line.socket, "n", 1, MSG_NOSIGNAL);
      return mismatch(one, "sends " + std::to_string(one.bytes) + " bytes");
    }
    if (!one.all_written()) return;
    moved(::send(line.socket, "y", 1, MSG_NOSIGNAL), one);
    line.waiting.pop_front();
  }

  void mismatch(const Underway& one, const std::string& theirs) {
    group_.set_error(kInvalidUsage, "rank " + std::to_string(one.transfer.peer) + " " + theirs +
                                        ", and rank " + std::to_string(group_.rank_) +
                                        (one.transfer.sends ? " sends " : " receives ") +
                                        std::to_string(one.transfer.bytes));
  }

  Group& group_;
  std::map<std::pair<int, bool>, Line> lines_;  // keyed by peer and direction
};

void Group::transfer(int64_t number, const std::vector<Transfer>& transfers) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return turn_ == number || aborted_; });
  lock.unlock();
  const Fault fault = fault_of(rank_, number);
  if (fault.kind == FaultKind::kDelay)
    std::this_thread::sleep_for(std::chrono::microseconds(fault.delay_us));
  if (fault.kind == FaultKind::kError) set_error(kSystemError, "a fault that a test asked for");
  if (fault.kind == FaultKind::kHang || fault.kind == FaultKind::kError) wait_for_abort();
  if (!aborted_) Play(*this, transfers).run();
  if (error_ != kSuccess) wait_for_abort();
  lock.lock();
  ++turn_;
  changed_.notify_all();
}

void Group::set_error(Result error, const std::string& words) {
  std::lock_guard lock(mutex_);
  if (error_ != kSuccess) return;
  words_ = words;
  error_ = error;
}

std::string Group::describe() const {
  std::lock_guard lock(mutex_);
  return words_;
}

void Group::abort() {
  const uint64_t one = 1;
  if (wake_ >= 0 && write(wake_, &one, sizeof(one)) < 0) set_error(kSystemError, "eventfd");
  std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

void Group::wait_for_abort() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return aborted_.load(); });
}

void Group::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return turn_ == numbers_ || aborted_; });
}

}  // namespace standin
