#pragma once
// For tests of groups that talk through NCCL: their ranks, which are threads, and what tests tell
// the stand-in for NCCL, and it tells them (test_nccl/).
//
// The same tests run over the stand-in in host memory and, where DISTCA_TEST_NCCL=cuda is set, over
// NCCL itself with CUDA devices: one for each rank, or one for two where DISTCA_NCCL_SAME_DEVICE=1
// says that the library lets them share it (DISTCA_NCCL_LIBRARY). On a GPU, one case of a late
// rank has passed, and the others are untried.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/comm/nccl/nccl_device.h"
#include "distca/comm/nccl/nccl_library.h"

namespace at {
class Tensor;
}

namespace distca {

/// Returns true if tests talk through NCCL itself.
bool nccl_is_real();
/// Why tests cannot run here, in one line; empty if they can.
std::string nccl_cannot_run();
/// The ranks that a test gets which wants so many: at most one a device, or two on a shared one.
int nccl_ranks(int wanted);
inline constexpr const char* kNeedsStandin = "asks the stand-in for a fault, or for what it saw";

/// A rank of a test: its device and the memory of its messages. It lives longer than the group, and
/// is made by the rank's thread, which gets a stream of its own on a CUDA device. One thread.
class NcclTestRank {
 public:
  /// `late`: host memory gets a current stream, too, which does later what it is given, as a GPU's.
  explicit NcclTestRank(int rank, bool late = false);
  ~NcclTestRank();
  NcclTestRank(const NcclTestRank&) = delete;
  NcclTestRank& operator=(const NcclTestRank&) = delete;

  std::unique_ptr<Communicator> join(uint16_t port, int size, const CommOptions& options) const;

  /// Memory of messages, which lie where the group moves them; it is used again after a megabyte.
  std::byte* take(int64_t bytes);
  void fill(std::byte* to, const std::vector<std::byte>& bytes) const;
  std::vector<std::byte> read(const std::byte* from, int64_t bytes) const;
  /// An integer of eight bytes: a tensor of one element.
  at::Tensor number(std::byte* at) const;

  /// The current stream does this later, and first nothing for a while.
  void give(std::function<void()> work) const;
  /// On a CUDA device, the current stream stands still for so long.
  void delay(int64_t microseconds) const;
  /// Until the current stream has done all that it was given, or the group has failed.
  void wait(const Communicator* group = nullptr) const;
  /// Until the exchange is over on the device; throws where the group fails.
  void wait(const Communicator& group, PendingExchange& pending) const;

  const int rank;
  const NcclLibrary& nccl;
  NcclDevice device;  // whose functions a test may replace

 private:
  struct Current;
  const std::unique_ptr<Current> current_;
  std::shared_ptr<std::byte> memory_;
  int64_t taken_ = 0;
};

/// Runs `body` on `size` threads; rethrows the first failure.
void run_nccl_ranks(int size, const CommOptions& options,
                    const std::function<void(Communicator&, NcclTestRank&)>& body);

// One thread at a time; both hold for all groups of the process.

/// The faults that the stand-in makes while this lives, as test_nccl/faults.cc reads them:
/// "delay,rank=1,us=100".
struct StandinFaults {
  explicit StandinFaults(const std::string& text);
  ~StandinFaults();
  StandinFaults(const StandinFaults&) = delete;
  StandinFaults& operator=(const StandinFaults&) = delete;
};

/// Calls `seen` for every group of sends and receives that any rank issues while this lives.
class StandinGroups {
 public:
  explicit StandinGroups(std::function<void(int rank, int sends, int receives)> seen);
  ~StandinGroups();
  StandinGroups(const StandinGroups&) = delete;
  StandinGroups& operator=(const StandinGroups&) = delete;

 private:
  const std::function<void(int, int, int)> seen_;
};

}  // namespace distca
