#pragma once
// A rank's connections with the others in the stand-in for NCCL: two Unix sockets with each peer,
// one for the messages of each direction, whose answers go back on it. So a message waits for its
// own pair and direction alone, and the ranks may be threads or processes.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace standin {

// The values are those of nccl.h.
enum Result {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

/// A send or a receive.
struct Transfer {
  bool sends = false;
  int peer = 0;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

/// Any thread, but for connect() and close().
class Group {
 public:
  Group(int rank, int size) : rank_(rank), out_(size, -1), in_(size, -1) {}
  ~Group();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(out_.size()); }

  /// Meets all others under a name. False if they do not come within the patience of a test.
  bool connect(const std::string& name);

  /// The number of a group of transfers; they are made in the order of their numbers.
  int64_t number() { return numbers_++; }
  /// Returns when all are over; where something goes wrong, when the group is aborted.
  void transfer(int64_t number, const std::vector<Transfer>& transfers);

  void set_error(Result error, const std::string& words);
  Result error() const { return error_; }
  std::string describe() const;
  void abort();
  void wait_for_abort();
  /// Returns when all that has a number has been transferred, or the group was aborted.
  void drain();

 private:
  class Play;

  const int rank_;
  std::vector<int> out_, in_;  // [peer] sockets
  int wake_ = -1;              // readable once aborted
  std::atomic<int64_t> numbers_ = 0;
  std::atomic<Result> error_ = kSuccess;
  std::atomic<bool> aborted_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t turn_ = 0;  // the number whose transfers are made
  std::string words_;
};

}  // namespace standin
