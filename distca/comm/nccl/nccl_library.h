#pragma once
// NCCL's C interface, loaded at run time: the library that PyTorch has brought. So every build has
// it, and none needs a header of NCCL or CUDA. The declarations are ours; NCCL keeps what these
// functions take from version to version.
//
//     const NcclLibrary& nccl = nccl_library();
//     nccl.check(nccl.group_start(), nullptr, "ncclGroupStart");
//
// Thread rule: a loaded library is a plain value, which any thread may use.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace distca {

/// A rank's connections with a group (ncclComm_t).
using NcclComm = void*;

/// Passed by value, as in nccl.h.
struct NcclUniqueId {
  char internal[128];
};

// Values of ncclResult_t and ncclDataType_t.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclUint8 = 1;

/// Functions that a library whose messages lie in host memory exports in addition to NCCL's,
/// because no driver has streams for it. Only the stand-in that tests use does (test_nccl/). Each
/// returns 0.
struct HostStreams {
  int (*create)(void** stream) = nullptr;
  /// After all that the stream has been given.
  int (*destroy)(void* stream) = nullptr;
  /// A mark at the end of what the stream has been given so far.
  int (*mark)(void* stream, void** mark) = nullptr;
  /// 1 if the mark has been passed, after at most so long, else 0.
  int (*wait)(void* mark, int64_t microseconds) = nullptr;
  int (*free_mark)(void* mark) = nullptr;
};

struct NcclLibrary {
  std::string path;  // the library's file
  int version = 0;   // 22809: 2.28.9

  int (*get_unique_id)(NcclUniqueId* id) = nullptr;
  int (*comm_init_rank)(NcclComm* comm, int size, NcclUniqueId id, int rank) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* data, size_t count, int type, int peer, NcclComm comm,
              void* stream) = nullptr;
  int (*recv)(void* data, size_t count, int type, int peer, NcclComm comm, void* stream) = nullptr;
  int (*comm_get_async_error)(NcclComm comm, int* error) = nullptr;
  int (*comm_abort)(NcclComm comm) = nullptr;
  int (*comm_finalize)(NcclComm comm) = nullptr;
  int (*comm_destroy)(NcclComm comm) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(NcclComm comm) = nullptr;

  std::optional<HostStreams> host = {};

  /// Throws std::runtime_error with what NCCL says of a result that is not success: "ncclSend:
  /// invalid argument (...)". Our communicators block, so "in progress" is none. `comm` may be
  /// null.
  void check(int result, NcclComm comm, const char* function) const;
  /// Returns what NCCL says of a result, in one line.
  std::string describe(int result, NcclComm comm) const;
};

/// Throws Error(kConfig) for a library without host streams: it carries the memory of GPUs only.
void check_carries_host_memory(const NcclLibrary& nccl);

/// "2.28.9" of 22809.
std::string nccl_version_text(int version);

/// Loads a library. `path`: a file; without one, the library that this process has already loaded
/// with PyTorch, else what the system's loader finds by the name libnccl.so.2. Throws
/// Error(kConfig) in one line that says what was tried and what to do.
NcclLibrary load_nccl(const std::optional<std::string>& path);

/// The library of this process, which is loaded once: the one that the environment variable
/// DISTCA_NCCL_LIBRARY names, else as load_nccl() without a path.
const NcclLibrary& nccl_library();

}  // namespace distca
