// The operators that deal the rows of a step over ranks before the model runs
// (python/distca/_deal.py). They send over the group in host memory. All ranks call them in the
// same order.

#include <ATen/ATen.h>

#include <torch/library.h>

#include <cstring>
#include <numeric>

#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/comm/tags.h"
#include "distca/torch_ops/ranks.h"

namespace distca::torch_ops {
namespace {

/// [ranks] every rank's text.
std::vector<std::string> all_texts(std::string group, std::string mine) {
  const auto ranks = Ranks::find(group);
  const std::scoped_lock lock(ranks->mutex);
  return all_gather_texts(ranks->comm(), std::move(mine), "exchanging what steps have");
}

/// Sends the first sends[0] rows to rank 0, the next sends[1] to rank 1, and so on, and returns
/// those of the other ranks likewise. `rows`: [sum of sends, ...], contiguous, on the CPU.
at::Tensor exchange_rows(std::string group, const at::Tensor& rows, at::IntArrayRef sends,
                         at::IntArrayRef receives) {
  const auto ranks = Ranks::find(group);
  const std::scoped_lock lock(ranks->mutex);
  Communicator& comm = ranks->comm();
  const auto sum = [](at::IntArrayRef of) {
    return std::accumulate(of.begin(), of.end(), int64_t{0});
  };
  DISTCA_THROW_IF(!rows.is_cpu() || !rows.is_contiguous() || rows.dim() == 0 ||
                      std::ssize(sends) != comm.size() || std::ssize(receives) != comm.size() ||
                      sum(sends) != rows.size(0),
                  ErrorKind::kUsage, "exchange_rows: rows do not fit");
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = sum(receives);
  at::Tensor received = at::empty(sizes, rows.options());
  const int64_t row_bytes = rows.itemsize() * c10::multiply_integers(rows.sizes().slice(1));
  auto* from = static_cast<std::byte*>(const_cast<void*>(rows.const_data_ptr()));
  auto* to = static_cast<std::byte*>(received.mutable_data_ptr());
  std::vector<Message> out, in;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const int64_t sent = sends[rank] * row_bytes, got = receives[rank] * row_bytes;
    if (rank == comm.rank()) {
      DISTCA_THROW_IF(sent != got, ErrorKind::kUsage, "exchange_rows: rows do not fit");
      std::copy_n(from, sent, to);
    } else {
      if (sent > 0) out.push_back({.peer = rank, .tag = kRowsTag, .data = from, .bytes = sent});
      if (got > 0) in.push_back({.peer = rank, .tag = kRowsTag, .data = to, .bytes = got});
    }
    from += sent;
    to += got;
  }
  comm.exchange(out, in, "dealing the rows of a step")->wait();
  return received;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(distca, library) {
  library.def("all_texts(str group, str mine) -> str[]", &all_texts);
  library.def("exchange_rows(str group, Tensor rows, int[] sends, int[] receives) -> Tensor");
}
TORCH_LIBRARY_IMPL(distca, CPU, library) { library.impl("exchange_rows", &exchange_rows); }

}  // namespace distca::torch_ops
