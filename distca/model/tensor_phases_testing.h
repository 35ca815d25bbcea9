#pragma once
// The rows that ranks of a server send each other between their phases, for tests of these.
//
//     GatheredRows rows(group, num_tokens, at::kDouble);
//     const at::Tensor h = rows.gather(phases.norm(...)), m = x + rows.sum(parts);
//
// Include <ATen/ATen.h> before this header. Thread rule: as its group.

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/model/tensor_phases.h"
#include "distca/program/program.h"

namespace distca {

class GatheredRows final : public TensorLoss {
 public:
  /// `wide` is the main params' type, in which parts are summed.
  GatheredRows(Communicator& group, int64_t num_tokens, at::ScalarType wide)
      : group_(group), wide_(wide) {
    for (int rank = 0; rank < group.size(); ++rank)
      counts_.push_back(TensorPlace{.size = group.size(), .index = rank}.part(num_tokens).size());
  }
  /// A fault: the second rank's part of a sum counts twice.
  void add_a_part_twice() { adds_twice_ = true; }

  /// Rows of all tokens.
  at::Tensor gather(const at::Tensor& rows) { return gather_rows(rows, counts_); }
  at::Tensor sum(const at::Tensor& parts) { return sum_rows(parts, counts_); }

  at::Tensor gather_rows(const at::Tensor& rows, std::span<const int64_t> counts) override {
    return at::cat(swapped(std::vector<at::Tensor>(counts.size(), rows.contiguous()), counts));
  }
  at::Tensor gather_statistics(const at::Tensor& statistics) override {
    EXPECT_EQ(statistics.scalar_type(), wide_);
    EXPECT_TRUE(statistics.is_contiguous());
    const std::vector<int64_t> counts(counts_.size(), statistics.size(0));
    return gather_rows(statistics, counts).view({group_.size(), statistics.size(0), -1});
  }
  at::Tensor sum_rows(const at::Tensor& parts, std::span<const int64_t> counts) override {
    const at::IntArrayRef sizes(counts.data(), counts.size());
    const std::vector<int64_t> own(counts.size(), counts[group_.rank()]);
    const std::vector<at::Tensor> all = swapped(parts.contiguous().split_with_sizes(sizes), own);
    at::Tensor sum = all[0].to(wide_, /*non_blocking=*/false, /*copy=*/true);
    for (size_t rank = 1; rank < all.size(); ++rank) sum.add_(all[rank]);
    if (adds_twice_) sum.add_(all[1]);
    return sum.to(parts.scalar_type());
  }

 private:
  /// Sends out[rank] to each rank. Returns the rows that come from each of them.
  std::vector<at::Tensor> swapped(const std::vector<at::Tensor>& out,
                                  std::span<const int64_t> counts) {
    std::vector<at::Tensor> in;
    std::vector<Message> sends, receives;
    const auto add = [](std::vector<Message>& messages, int peer, const at::Tensor& rows) {
      if (rows.numel() == 0) return;
      auto* const data = static_cast<std::byte*>(rows.data_ptr());
      messages.push_back({peer, /*tag=*/1, data, static_cast<int64_t>(rows.nbytes())});
    };
    for (int peer = 0; peer < group_.size(); ++peer) {
      in.push_back(at::empty({counts[peer], out[peer].size(1)}, out[peer].options()));
      if (peer == group_.rank()) {
        in.back().copy_(out[peer]);
        continue;
      }
      add(sends, peer, out[peer]);
      add(receives, peer, in.back());
    }
    group_.exchange(sends, receives, "rows")->wait();
    return in;
  }

  Communicator& group_;
  const at::ScalarType wide_;
  std::vector<int64_t> counts_;
  bool adds_twice_ = false;
};

}  // namespace distca
