#include "distca/comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>

#include "distca/base/env.h"
#include "distca/base/error.h"

namespace distca {
namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr const char* kVariable = "DISTCA_NCCL_LIBRARY";
constexpr const char* kOldest = "2.14";  // has all functions

std::string loader_error() {
  const char* said = dlerror();
  return said ? said : "the system's loader does not say why";
}

/// The handle is never given back: threads of the library may run until the process ends.
void* open_library(const std::optional<std::string>& path) {
  if (path) {
    // Calls of the library to itself reach its own functions, and not those of the NCCL that
    // PyTorch has loaded.
    void* const handle = dlopen(path->c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    DISTCA_THROW_IF(!handle, ErrorKind::kConfig, "{} = {}: NCCL cannot be loaded: {}", kVariable,
                    *path, loader_error());
    return handle;
  }
  if (void* const loaded = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return loaded;
  void* const handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  DISTCA_THROW_IF(
      !handle, ErrorKind::kConfig,
      "NCCL cannot be loaded: this PyTorch has brought no {}, and by its name it is not "
      "found ({}); use a PyTorch with CUDA, or name the file by {}",
      kName, loader_error(), kVariable);
  return handle;
}

std::string path_of(void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname ? info.dli_fname : kName;
}

struct Symbols {
  void* handle;
  std::string path;

  template <typename Function>
  void find(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(dlsym(handle, name));
    DISTCA_THROW_IF(!*function, ErrorKind::kConfig,
                    "{} has no {}: it is not NCCL {} or later; name another file by {}", path, name,
                    kOldest, kVariable);
  }
};

std::optional<HostStreams> find_host_streams(const Symbols& symbols) {
  if (!dlsym(symbols.handle, "distcaHostStreamCreate")) return std::nullopt;
  HostStreams host;
  symbols.find("distcaHostStreamCreate", &host.create);
  symbols.find("distcaHostStreamDestroy", &host.destroy);
  symbols.find("distcaHostStreamMark", &host.mark);
  symbols.find("distcaHostMarkWait", &host.wait);
  symbols.find("distcaHostMarkFree", &host.free_mark);
  return host;
}

}  // namespace

std::string nccl_version_text(int version) {
  // Up to 2.8, the last two parts had two digits less.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return fmt::format("{}.{}.{}", major, minor, version % 100);
}

std::string NcclLibrary::describe(int result, NcclComm comm) const {
  std::string text = get_error_string(result);
  const char* last = get_last_error(comm);
  if (last && *last) text += fmt::format(" ({})", last);
  return first_line(std::runtime_error(text));
}

void NcclLibrary::check(int result, NcclComm comm, const char* function) const {
  if (result == kNcclSuccess) return;
  if (result == kNcclInProgress) {
    throw std::runtime_error(fmt::format(
        "{} has returned before it was done; unset NCCL_COMM_BLOCKING in the environment",
        function));
  }
  throw std::runtime_error(fmt::format("{}: {}", function, describe(result, comm)));
}

void check_carries_host_memory(const NcclLibrary& nccl) {
  DISTCA_THROW_IF(!nccl.host, ErrorKind::kConfig,
                  "comm.backend = nccl with train.device = cpu: NCCL {} carries the memory of GPUs "
                  "only; set comm.backend=gloo, or train.device=cuda",
                  nccl_version_text(nccl.version));
}

NcclLibrary load_nccl(const std::optional<std::string>& path) {
  NcclLibrary nccl;
  Symbols symbols{.handle = open_library(path), .path = path.value_or(kName)};
  int (*get_version)(int*) = nullptr;
  symbols.find("ncclGetVersion", &get_version);
  nccl.path = symbols.path = path_of(reinterpret_cast<void*>(get_version));
  symbols.find("ncclGetUniqueId", &nccl.get_unique_id);
  symbols.find("ncclCommInitRank", &nccl.comm_init_rank);
  symbols.find("ncclGroupStart", &nccl.group_start);
  symbols.find("ncclGroupEnd", &nccl.group_end);
  symbols.find("ncclSend", &nccl.send);
  symbols.find("ncclRecv", &nccl.recv);
  symbols.find("ncclCommGetAsyncError", &nccl.comm_get_async_error);
  symbols.find("ncclCommAbort", &nccl.comm_abort);
  symbols.find("ncclCommFinalize", &nccl.comm_finalize);
  symbols.find("ncclCommDestroy", &nccl.comm_destroy);
  symbols.find("ncclGetErrorString", &nccl.get_error_string);
  symbols.find("ncclGetLastError", &nccl.get_last_error);
  nccl.host = find_host_streams(symbols);
  const int result = get_version(&nccl.version);
  DISTCA_THROW_IF(result != kNcclSuccess, ErrorKind::kConfig, "{} does not say its version: {}",
                  nccl.path, nccl.describe(result, nullptr));
  return nccl;
}

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load_nccl(env_string(kVariable));
  return library;
}

}  // namespace distca
