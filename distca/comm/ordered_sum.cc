#include "distca/comm/ordered_sum.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/host_read.h"
#include "distca/comm/tags.h"

namespace distca {
namespace {

constexpr int64_t kScratchBytes = 16 << 20;

/// One chunk, cut into a slice for each rank: rank q owns elements slice(q) of it.
struct Slices {
  at::Tensor chunk;  // flat
  int64_t slice_elements = 0;

  at::Tensor slice(int rank) const {
    const int64_t begin = std::min(chunk.numel(), rank * slice_elements);
    const int64_t end = std::min(chunk.numel(), begin + slice_elements);
    return chunk.slice(0, begin, end);
  }
};

void add_message(std::vector<Message>& messages, int peer, uint32_t tag, const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  auto* const data = static_cast<std::byte*>(tensor.data_ptr());
  messages.push_back({peer, tag, data, static_cast<int64_t>(tensor.nbytes())});
}

void sum_chunk(Communicator& group, const Slices& slices, const at::Tensor& scratch,
               std::string_view operation) {
  const int rank = group.rank();
  at::Tensor own = slices.slice(rank);
  std::vector<at::Tensor> theirs(group.size());
  std::vector<Message> sends, receives;
  int64_t used = 0;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == rank) continue;
    theirs[peer] = scratch.slice(0, used, used + own.numel());
    used += own.numel();
    add_message(sends, peer, kReduceTag, slices.slice(peer));
    add_message(receives, peer, kReduceTag, theirs[peer]);
  }
  group.exchange(sends, receives, operation)->wait();

  theirs[rank] = own;
  if (own.numel() > 0) {
    at::Tensor sum = theirs[0];  // begins with x0, not 0 + x0: that would turn -0 into 0
    for (int peer = 1; peer < group.size(); ++peer) sum.add_(theirs[peer]);
    if (rank != 0) own.copy_(sum);
  }

  sends.clear();
  receives.clear();
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == rank) continue;
    add_message(sends, peer, kGatherTag, own);
    add_message(receives, peer, kGatherTag, slices.slice(peer));
  }
  group.exchange(sends, receives, operation)->wait();
}

}  // namespace

void ordered_sum(Communicator& group, at::Tensor& tensor, std::string_view operation) {
  DISTCA_CHECK(tensor.is_contiguous(), "ordered_sum of a tensor with gaps");
  DISTCA_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble,
               "ordered_sum of {}: fp32 and fp64 only", at::toString(tensor.scalar_type()));
  const int64_t peers = group.size() - 1;
  if (peers == 0 || tensor.numel() == 0) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor flat = tensor.detach().view({-1});
  const int64_t most =
      std::max<int64_t>(1, kScratchBytes / (peers * static_cast<int64_t>(tensor.element_size())));
  const int64_t slice = std::min(most, ceil_div(flat.numel(), group.size()));
  const at::Tensor scratch = at::empty({slice * peers}, flat.options());
  for (int64_t begin = 0; begin < flat.numel(); begin += slice * group.size()) {
    const int64_t end = std::min(flat.numel(), begin + slice * group.size());
    sum_chunk(group, {.chunk = flat.slice(0, begin, end), .slice_elements = slice}, scratch,
              operation);
  }
}

void ordered_sum(Communicator& group, std::span<double> values, std::string_view operation) {
  const at::Tensor host =
      at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble);
  at::Tensor there = upload(host, aten_device(group.cuda_device()));
  ordered_sum(group, there, operation);
  read_to(host, there);
  group.throw_if_failed();
}

}  // namespace distca
