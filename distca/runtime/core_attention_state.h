#pragma once
// Inside of CoreAttention: what it keeps between its operations. Include <ATen/ATen.h> before it.

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "distca/runtime/core_attention.h"
#include "distca/runtime/message_rows.h"

namespace distca {

/// What a home keeps of one layer of one nano-batch.
struct HomeRows {
  at::Tensor q, k, v;
  at::Tensor o, lse;               // [T, H, E], [T, H, 1]
  at::Tensor d_o, delta;           // backward
  at::Tensor dq, dk, dv;           // sums, backward
  std::array<bool, 2> complete{};  // [Pass] O and LSE, the sums
};

/// What is under way of one pass of one layer step of an exchange.
struct Round {
  size_t tasks_done = 0;
  bool landed = false;               // what comes home
  int32_t arrived = -1;              // buffer that it came in
  std::vector<at::Tensor> partials;  // [2 x tasks] O, LSE of those that are partial
};

/// The tasks of one set of an exchange as kernels take them, made once for all layers. The buffers
/// of the lists are set before each call.
struct KernelTasks {
  kernels::TaskList whole;             // forward: those whose O and LSE are the rows' own
  kernels::TaskList partial;           // forward: those whose O and LSE are parts of merges
  kernels::TaskList backward;          // all
  std::vector<int32_t> partial_tasks;  // [partial.tasks] index in rows.tasks
};
KernelTasks kernel_tasks(const AttentionExchange& exchange, TaskSet set);

struct CoreAttention::State {
  const Program& program;
  AttentionKernel& kernel;
  Communicator& comm;
  const ExchangeBuffers& buffers;
  kernels::Shape shape;
  ScalarType type;         // compute
  ScalarType accumulator;  // fp64 for fp64, else fp32
  int num_layers = 0, num_layer_steps = 0;
  HomeRows nowhere;             // of a rank that only serves
  std::vector<HomeRows> homes;  // [nano-batch x num_layers + layer]
  std::vector<Round> rounds;    // [(exchange x num_layer_steps + layer step) x 2 + pass]
  std::vector<std::array<KernelTasks, kNumTaskSets>> tasks;      // [exchange][task set]
  std::map<uint32_t, std::unique_ptr<PendingExchange>> pending;  // [tag]
  ExchangeBytes bytes;

  State(const Program& program_in, AttentionKernel& kernel_in, Communicator& comm_in,
        const ExchangeBuffers& buffers_in);

  at::TensorOptions tensor_options(ScalarType scalar) const {
    return at::dtype(aten_type(scalar))
        .device(comm.cuda_device() < 0
                    ? at::Device(at::kCPU)
                    : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(comm.cuda_device())));
  }
  const AttentionExchange& exchange_of(const Op& op) const {
    return *program.exchanges[op.exchange];
  }
  Round& round_of(const Op& op) {
    return rounds[2 * (op.exchange * num_layer_steps + op.layer_step) + static_cast<int>(op.pass)];
  }
  KernelTasks& tasks_of(const Op& op) { return tasks[op.exchange][static_cast<size_t>(op.tasks)]; }
  HomeRows& home(int nano_batch, int layer) { return homes.at(nano_batch * num_layers + layer); }
  HomeRows& home_of(const Op& op);
  void check_local(const char* name, const at::Tensor& tensor, int64_t heads, int64_t dim) const;

  // The messages of an exchange where they lie in a buffer, one for each of rows.sends or
  // rows.receives; those that there are none of have no rows.
  std::vector<MessageRows> with_servers(const Op& op, Content content, int32_t buffer) const;
  std::vector<MessageRows> with_homes(const Op& op, Content content, int32_t buffer) const;
  std::vector<MessageRows> messages(const AttentionExchange& exchange, Content content,
                                    const std::vector<PeerTransfer>& transfers,
                                    const MessageList& list, int32_t buffer) const;
  int32_t buffer_of(const std::vector<int32_t>& used, BufferRole role) const;

  void compute_forward(HomeRows& home, Round& round, const Op& op);
  void compute_backward(HomeRows& home, const Op& op);
  void merge(const std::vector<at::Tensor>& partials, const std::vector<MessageRows>& arrived,
             const RowMerge& rows, const kernels::Rows& o, const kernels::Rows& lse);
  void zero_local_gradients(HomeRows& home);
  void complete_if_done(HomeRows& home, const Op& op);
};

}  // namespace distca
