// A stand-in for NCCL, for tests alone: the functions of nccl.h that DistCA calls, over host memory
// and Unix sockets, for ranks that are threads or processes. As NCCL, it does what it is given
// later and in the order of a stream, matches messages of a pair by their order alone, holds a send
// until its receive takes it, and hangs where something is wrong until it is aborted. Beyond NCCL,
// it finds sizes that do not match, and it does wrong what a test asks for (faults.h).
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "distca/comm/test_nccl/faults.h"
#include "distca/comm/test_nccl/group.h"
#include "distca/comm/test_nccl/stream.h"

namespace standin {
namespace {

constexpr int kVersion = 22809;  // 2.28.9
constexpr size_t kIdBytes = 128;

struct Id {
  char internal[kIdBytes];
};

using Seen = void (*)(void* argument, int rank, int sends, int receives);

/// All communicators of this process: one that was freed is found to be.
struct Everything {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<Group>> groups;
  Seen seen = nullptr;
  void* seen_argument = nullptr;
};

Everything& everything() {
  static Everything* const all = new Everything;  // streams may outlive main()
  return *all;
}

std::shared_ptr<Group> find(void* comm) {
  std::lock_guard lock(everything().mutex);
  const auto found = everything().groups.find(comm);
  return found == everything().groups.end() ? nullptr : found->second;
}

std::shared_ptr<Group> take(void* comm) {
  const std::shared_ptr<Group> group = find(comm);
  std::lock_guard lock(everything().mutex);
  everything().groups.erase(comm);
  return group;
}

/// The calls of a thread between ncclGroupStart and ncclGroupEnd.
struct Said {
  int depth = 0;
  Result wrong = kSuccess;
  std::map<std::pair<void*, void*>, std::vector<Transfer>> transfers;  // keyed by (comm, stream)
};
thread_local Said said;

Result issue(void* comm, void* stream, std::vector<Transfer> transfers) {
  const std::shared_ptr<Group> group = find(comm);
  if (!group) return kInvalidArgument;
  const int64_t number = group->number();
  const FaultKind fault = fault_of(group->rank(), number).kind;
  if (fault == FaultKind::kRefuse) return kInternalError;
  if (fault == FaultKind::kBlock) {
    group->wait_for_abort();
    return kInternalError;
  }
  Seen seen = nullptr;
  void* argument = nullptr;
  {
    std::lock_guard lock(everything().mutex);
    seen = everything().seen;
    argument = everything().seen_argument;
  }
  int sends = 0;
  for (const Transfer& one : transfers) sends += one.sends ? 1 : 0;
  if (seen) seen(argument, group->rank(), sends, static_cast<int>(transfers.size()) - sends);
  static_cast<Stream*>(stream)->give(
      [group, number, all = std::move(transfers)] { group->transfer(number, all); });
  return kSuccess;
}

Result end_group() {
  const Said all = std::exchange(said, {});
  if (all.wrong != kSuccess) return all.wrong;
  for (const auto& [where, transfers] : all.transfers) {
    const Result result = issue(where.first, where.second, transfers);
    if (result != kSuccess) return result;
  }
  return kSuccess;
}

Result add(bool sends, const void* data, size_t bytes, int peer, void* comm, void* stream) {
  const std::shared_ptr<Group> group = find(comm);
  const bool right = group && data && stream && peer >= 0 && peer < group->size() &&
                     peer != group->rank() && bytes > 0;
  if (!right) return said.wrong = kInvalidArgument;
  said.transfers[{comm, stream}].push_back(
      {.sends = sends,
       .peer = peer,
       .data = static_cast<std::byte*>(const_cast<void*>(data)),
       .bytes = bytes});
  return said.depth == 0 ? end_group() : kSuccess;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

int ncclGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

int ncclGetUniqueId(Id* id) {
  static std::atomic<int> number = 0;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "distca-standin-%d-%d-%u",
                static_cast<int>(getpid()), number++, std::random_device()());
  return kSuccess;
}

int ncclCommInitRank(void** comm, int size, Id id, int rank) {
  if (rank < 0 || rank >= size) return kInvalidArgument;
  const auto group = std::make_shared<Group>(rank, size);
  if (!group->connect(id.internal)) return kSystemError;
  *comm = group.get();
  std::lock_guard lock(everything().mutex);
  everything().groups[group.get()] = group;
  return kSuccess;
}

int ncclGroupStart() {
  ++said.depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (said.depth == 0) return kInvalidUsage;
  return --said.depth == 0 ? end_group() : kSuccess;
}

int ncclSend(const void* data, size_t count, int type, int peer, void* comm, void* stream) {
  return type > 1 ? kInvalidArgument : add(true, data, count, peer, comm, stream);
}

int ncclRecv(void* data, size_t count, int type, int peer, void* comm, void* stream) {
  return type > 1 ? kInvalidArgument : add(false, data, count, peer, comm, stream);
}

int ncclCommGetAsyncError(void* comm, int* error) {
  const std::shared_ptr<Group> group = find(comm);
  if (!group) return kInvalidArgument;
  *error = group->error();
  return kSuccess;
}

int ncclCommAbort(void* comm) {
  const std::shared_ptr<Group> group = take(comm);
  if (!group) return kInvalidArgument;
  group->abort();
  return kSuccess;
}

int ncclCommFinalize(void* comm) {
  const std::shared_ptr<Group> group = find(comm);
  if (!group) return kInvalidArgument;
  group->drain();
  return kSuccess;
}

int ncclCommDestroy(void* comm) { return take(comm) ? kSuccess : kInvalidArgument; }

const char* ncclGetErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kSystemError:
      return "unhandled system error";
    case kInternalError:
      return "internal error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(void* comm) {
  thread_local std::string words;
  const std::shared_ptr<Group> group = find(comm);
  words = group ? group->describe() : "";
  return words.c_str();
}

/// Calls `seen` for each group that is issued from now on. Null ends that.
void distcaStandinWatch(Seen seen, void* argument) {
  std::lock_guard lock(everything().mutex);
  everything().seen = seen;
  everything().seen_argument = argument;
}
}
