#pragma once
// Ranks are the ranks of one process group of the caller's, as this process sees them: their
// communicators, and the CoreAttention of each kind of layer.
//
// What ranks agree on travels in host memory, over the process group. Q, K, V, O and gradients of
// tensors on a CUDA device travel through NCCL, those of tensors on the CPU over the process group.
//
// Threads. A method is called with `mutex` locked, which also guards all handles of `attention()`.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "distca/api/core_attention.h"
#include "distca/comm/communicator.h"

namespace c10 {
class Stream;
}

namespace distca::torch_ops {

/// The kind of a layer's attention. Layers of one kind share a CoreAttention.
struct Kind {
  api::Shape shape;
  int cuda_device = -1;  // The device of the tensors. -1 is the CPU.
  int64_t kernel = 0;    // index in api::kernel_names()
  bool operator==(const Kind&) const = default;
};

/// The properties of a layer on which, together with the documents, its plan depends, and on which
/// ranks must agree. No plan depends on the scale.
struct LayerKind {
  Kind kind;
  double softmax_scale = 0;
  int64_t window_left = -1;
  int64_t linear_work = 0;  // BatchRequest::linear_work
  bool operator==(const LayerKind&) const = default;
};
using LayerKinds = std::vector<LayerKind>;

/// How much was done since the group was opened: sums over all layers.
struct Counts {
  int64_t forwards = 0;
  int64_t backwards = 0;
  int64_t sent_bytes = 0;
  int64_t plans = 0;
};

/// How even the attention of a group's forwards was: sums over all calls of a layer.
struct Balance {
  api::BatchPlan::Work work{};
  double sent_bytes = 0;  // in forward, of all ranks
};

class Ranks {
 public:
  /// Meets the other ranks of a process group, which must be ours alone, by its name in c10d. All
  /// of them call it. `backend`: "gloo" refuses tensors on a device, "nccl" sends those on the CPU
  /// through NCCL, too, and "" takes what fits them. Throws Error(kUsage) for a name that is open
  /// or unknown and where ranks differ in backend, and Error(kComm), which names the ranks that
  /// have not come.
  static void open(const std::string& name, const std::string& backend, const CommOptions& options);
  /// The ranks that were opened under that name; for an empty name, this process alone. Throws
  /// Error(kUsage).
  static std::shared_ptr<Ranks> find(const std::string& name);
  /// Forgets those of that name, if there are any. They end with their last handle.
  static void close(const std::string& name);
  /// Forgets all. They end with their last handle. `failed`: this process ends with an error. When
  /// they end, the others hear of that, and this rank waits for none of them.
  static void close_all(bool failed);

  /// Meets the same ranks where messages lie on a device, or -1 in host memory. Null means that
  /// they go through the communicator that is there.
  using Connect = std::function<std::unique_ptr<Communicator>(int cuda_device)>;
  explicit Ranks(std::unique_ptr<Communicator> comm, Connect connect = nullptr)
      : comm_(std::move(comm)), connect_(std::move(connect)) {}

  ~Ranks();

  /// In host memory: what ranks agree on.
  Communicator& comm() { return *comm_; }
  /// Made at the first call of a kind, or the first since it was forgotten: of each device, the
  /// kinds that were used last are remembered. All ranks call it in the same order, after they have
  /// agreed on the kind. It computes with as many threads as ATen has when it is made. Throws
  /// Error(kUsage).
  std::shared_ptr<api::CoreAttention> attention(const Kind& kind);
  /// The plan of a request, or the one that it led to a short while ago. `plan_batch` throws.
  api::BatchPlan plan(const api::BatchRequest& request);
  Counts counts() const;
  /// Throws the Error(kComm) of the group, if it has failed (Communicator::throw_if_failed).
  void throw_if_failed() const;

  /// Hashes that `agree` keeps of the agreements before: of the inputs whose plans have been
  /// compared, and of the latest plans.
  std::set<uint64_t> compared;
  uint64_t latest_plans = 0;

  std::mutex mutex;
  /// By device, that of the latest call of a layer. Layers share memory of messages, so a call on
  /// another stream comes behind it.
  std::map<int, std::shared_ptr<c10::Stream>> latest_streams;
  int64_t forwards = 0, backwards = 0;
  Balance balance;
  /// Notes a forward that begins; it adds the kinds of its layers as they come.
  void note_forward(std::shared_ptr<LayerKinds> kinds);
  /// The kinds of layers of the latest forwards, or of those that had `first`, which then leads.
  /// Forwards are alike, so the next one is planned for all of them when it begins.
  LayerKinds usual_kinds(const std::optional<LayerKind>& first = std::nullopt) const;

 private:
  struct Made {
    Kind kind;
    std::shared_ptr<api::CoreAttention> attention;
  };
  /// The communicator that carries Q, K, V, O and gradients of a device, or of the CPU, and its
  /// users.
  struct Carrier {
    std::unique_ptr<Communicator> own;   // Null means that comm_ carries them.
    std::unique_ptr<Communicator> comm;  // serves all kinds of layers
    std::vector<Made> made;              // all share `comm`, the latest last
  };
  struct Planned {
    api::BatchRequest request;
    api::BatchPlan plan;
  };

  Carrier& carrier(int cuda_device);

  std::unique_ptr<Communicator> comm_;
  const Connect connect_;
  std::map<int, Carrier> carriers_;                    // by device
  std::vector<Planned> planned_;                       // the latest last
  std::vector<std::shared_ptr<LayerKinds>> forwards_;  // likewise
  int64_t plans_ = 0;
};

}  // namespace distca::torch_ops
