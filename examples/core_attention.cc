#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "distca/api/core_attention.h"
#include "distca/comm/c10d_group.h"
#include "distca/comm/thread_group.h"

void run_layer(distca::Communicator& comm) {
  const distca::api::Shape shape{.num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  const auto plan = distca::api::plan_batch(
      {.cu_seqlens = {0, 1500, 1700, 2048}, .num_ranks = comm.size(), .shape = shape});
  distca::api::CoreAttention attention(comm, shape);
  attention.compare(plan);  // all ranks have the same one
  const int64_t tokens = plan.num_tokens(comm.rank());
  const at::Tensor q = at::randn({tokens, 4, 64}, at::kBFloat16);
  const at::Tensor k = at::randn({tokens, 2, 64}, at::kBFloat16), v = at::randn_like(k);
  distca::api::Forward forward = attention.forward(plan, q, k, v);  // Q, K, V are on their way
  const at::Tensor o = forward.wait();
  distca::api::Backward backward = attention.backward(forward, at::ones_like(o));
  const auto [dq, dk, dv] = backward.wait();
  fmt::print("rank {}: O of {} tokens, {} bytes sent\n", comm.rank(), o.size(0),
             attention.sent_bytes());
}

int main(int argc, char** argv) {
  if (argc < 3) {  // ranks as threads
    distca::run_ranks(2, {}, run_layer);
    return 0;
  }
  const int rank = atoi(argv[1]);  // 0 or 1: two processes
  c10d::TCPStoreOptions meeting{.isServer = rank == 0};
  meeting.port = static_cast<uint16_t>(atoi(argv[2]));
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", meeting);
  const auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  const auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, options);
  run_layer(*distca::make_c10d_group(*group, *store, {}));
}
