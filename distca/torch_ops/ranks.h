#pragma once
// Ranks are the ranks of one process group of the caller's, as this process sees them: their
// communicator, and the CoreAttention of each kind of layer.
//
// Threads. A method is called with `mutex` locked, which also guards all handles of `attention()`.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "distca/api/core_attention.h"
#include "distca/comm/communicator.h"

namespace distca::torch_ops {

/// What makes one layer's attention another kind than another one's.
struct Kind {
  api::Shape shape;
  double softmax_scale = 0;
  bool operator==(const Kind&) const = default;
};

/// What the plan of a layer depends on, beside the documents.
struct LayerKind {
  Kind kind;
  int64_t window_left = -1;
  bool operator==(const LayerKind&) const = default;
};

/// How much was done since the group was opened: sums over all layers.
struct Counts {
  int64_t forwards = 0;
  int64_t backwards = 0;
  int64_t sent_bytes = 0;
  int64_t plans = 0;
};

class Ranks {
 public:
  /// Meets the other ranks of a process group, which must be ours alone, by its name in c10d. All
  /// of them call it. Throws Error(kUsage) for a name that is open or unknown, and Error(kComm),
  /// which names the ranks that have not come.
  static void open(const std::string& name, const CommOptions& options);
  /// The ranks that were opened under that name; for an empty name, this process alone. Throws
  /// Error(kUsage).
  static std::shared_ptr<Ranks> find(const std::string& name);
  /// Forgets all. They end with their last handle.
  static void close_all();

  explicit Ranks(std::unique_ptr<Communicator> comm) : comm_(std::move(comm)) {}

  Communicator& comm() { return *comm_; }
  /// Made at the first call of a kind, which all ranks make in the same order. It computes with as
  /// many threads as ATen has then. Throws Error(kUsage).
  api::CoreAttention& attention(const Kind& kind);
  /// The plan of a request, or the one that it led to a short while ago. `plan_batch` throws.
  api::BatchPlan plan(const api::BatchRequest& request);
  Counts counts() const;

  std::mutex mutex;
  int64_t forwards = 0, backwards = 0;
  /// The kinds of layers of the forward that brought a new one last. Forwards are alike, so they
  /// are planned together when the next one begins.
  std::vector<LayerKind> usual;
  int64_t usual_linear_work = 0;  // of the latest forward

 private:
  struct Made {
    Kind kind;
    std::unique_ptr<Communicator> comm;
    std::unique_ptr<api::CoreAttention> attention;
  };
  struct Planned {
    api::BatchRequest request;
    api::BatchPlan plan;
  };

  std::unique_ptr<Communicator> comm_;
  std::vector<Made> made_;
  std::vector<Planned> planned_;  // the latest last
  int64_t plans_ = 0;
};

}  // namespace distca::torch_ops
