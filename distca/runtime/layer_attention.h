#pragma once
// LayerAttention has the parts of core attention of one layer: packing, issuing, tasks, merging and
// sums. It sets no order among them. runtime/step_attention.h plays them for the operations of a
// program, and api/core_attention.h plays them as its caller asks for them.
//
// Include <ATen/ATen.h> before this header. One thread uses an object.

#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/program/program.h"
#include "distca/runtime/attention_kernel.h"
#include "distca/runtime/cuda/task_launches.h"
#include "distca/runtime/message_rows.h"
#include "distca/runtime/step_attention.h"
#include "distca/runtime/task_lists.h"

namespace distca {

/// The rows that a home keeps of one layer of one nano-batch.
struct HomeRows {
  at::Tensor q, k, v;
  at::Tensor o, lse;      // [T, H, E], [T, H, 1]
  at::Tensor d_o, delta;  // in backward
  at::Tensor sums;        // in backward: flat, what the next three lie in
  at::Tensor dq, dk, dv;
  std::array<bool, 2> complete{};  // [Pass] whether O and LSE, or the sums, are complete

  bool is_complete(Pass pass) const {
    return complete[static_cast<size_t>(pass)] || !q.defined() || q.size(0) == 0;
  }
};

/// How far one pass of one layer step of an exchange has come.
struct LayerState {
  size_t tasks_done = 0;
  size_t returned_done = 0;          // tasks among these whose queries were received
  bool sums_cleared = false;         // where gradients are summed that are returned
  bool landed = false;               // true if everything that comes home has arrived
  std::span<std::byte> arrived;      // where that lies
  std::vector<at::Tensor> partials;  // [2 x tasks] O and LSE of the tasks that are partial
};

/// Tasks of an exchange that are computed at once: a set, or a part (plan/attention_parts.h). They
/// are made once for all layers. The buffers of the lists are set before each call.
struct KernelTasks : TaskLists {
  TaskLaunches whole_launches{}, partial_launches{}, backward_launches{};  // for the three lists
  bool reads_received = false;                                             // Q, K, V
  bool has_returned = false;  // tasks whose queries were received
  size_t ended = 0;           // tasks whose last queries are among these
  size_t returned_ended = 0;  // tasks of received queries among these
};
KernelTasks kernel_tasks(const AttentionExchange& exchange, std::span<const TaskPiece> pieces);

// The buffers that the messages of a content are sent from and received into.
BufferRole sent_from(Content content);
BufferRole received_into(Content content);

/// The messages of an exchange that are issued: sends, receives or both.
enum class Directions { kBoth, kSends, kReceives };

/// One pass of one layer through an exchange. It borrows everything.
struct LayerPass {
  const AttentionExchange& exchange;
  HomeRows& home;
  LayerState& layer_state;
  Pass pass = Pass::kForward;
  /// [BufferRole] Where messages and sums lie. Memory that a part does not use may be empty.
  std::array<std::span<std::byte>, kNumBufferRoles> memory{};

  std::span<std::byte> of(BufferRole role) const { return memory[static_cast<size_t>(role)]; }
};

class LayerAttention {
 public:
  /// Borrows the first two, which must be on one device. The servers of exchanges are those ranks
  /// of `comm` that have this index in tensor parallelism.
  LayerAttention(AttentionKernel& kernel, Communicator& comm, const TensorPlace& tensor = {});

  /// Checks that the kernel computes the heads and types of the exchange (CHECK).
  void check(const AttentionExchange& exchange) const;
  /// Makes what a device is told of the tasks of one pass. Without it, the first layer makes that.
  void prepare(const AttentionExchange& exchange, KernelTasks& tasks, Pass pass) const;

  /// Take what StepAttention::set_qkv, set_qkv_again and set_d_o take.
  HomeRows home_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  void set_qkv(HomeRows& home, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  void set_d_o(HomeRows& home, const at::Tensor& d_o) const;

  /// Copies what travels to where it is sent from.
  void pack(const LayerPass& layer, Content content);
  /// Hands the messages to the group. Returns null if there are none. Sends and receives of a
  /// content may be issued apart: the peer learns of a receive by a message of its own, which
  /// waits behind whatever was sent before.
  std::unique_ptr<PendingExchange> issue(const LayerPass& layer, Content content, uint32_t tag,
                                         std::string_view operation,
                                         Directions directions = Directions::kBoth);
  /// Puts O and LSE, which have arrived, in their place. Gradients are added later, when the pass
  /// completes. Completes the pass if all tasks have been computed.
  void land(const LayerPass& layer);
  /// Computes tasks. Completes the pass if these were the last and everything that comes home has
  /// landed. All parts of a pass are computed in their order.
  void compute(const LayerPass& layer, KernelTasks& tasks);

  /// Gives the gradients in the compute type. Backward must be complete.
  QkvGradients take_gradients(HomeRows& home) const;

  const ExchangeBytes& bytes() const { return bytes_; }

 private:
  at::TensorOptions tensor_options(ScalarType scalar) const;
  void check_local(const char* name, const at::Tensor& tensor, int64_t heads, int64_t dim) const;

  // The messages of a content where they lie in a buffer, one for each of rows.sends or of
  // rows.receives. A message that does not exist has no rows.
  std::vector<MessageRows> with_servers(const AttentionExchange& exchange, Content content,
                                        std::span<std::byte> memory) const;
  std::vector<MessageRows> with_homes(const AttentionExchange& exchange, Content content,
                                      std::span<std::byte> memory) const;
  std::vector<MessageRows> messages(const AttentionExchange& exchange, Content content,
                                    const std::vector<PeerTransfer>& transfers,
                                    const MessageList& list, std::span<std::byte> memory) const;

  void compute_forward(const LayerPass& layer, KernelTasks& tasks);
  void compute_backward(const LayerPass& layer, KernelTasks& tasks);
  kernels::QueryBuffer partial_buffer(const LayerPass& layer, const KernelTasks& tasks,
                                      const TaskPiece& piece) const;
  void merge(const std::vector<at::Tensor>& partials, const std::vector<MessageRows>& arrived,
             const RowMerge& rows, const kernels::Rows& o, const kernels::Rows& lse);
  void zero_local_gradients(HomeRows& home) const;
  void add_arrived_gradients(const LayerPass& layer, const std::vector<MessageRows>& arrived);
  void complete_if_done(const LayerPass& layer);

  AttentionKernel& kernel_;
  Communicator& comm_;
  TensorPlace tensor_;
  kernels::Shape shape_;
  ScalarType type_;         // the type of Q, K, V, O
  ScalarType accumulator_;  // the type of LSE and sums: fp64 for fp64, else fp32
  ExchangeBytes bytes_;
};

}  // namespace distca
