#include "distca/runtime/row_moves.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "distca/comm/as_on_device.h"

namespace distca {

struct RowMoves::Pairs {
  std::vector<at::Tensor> to, from;
};

RowMoves::RowMoves(int cuda_device) : together_(as_on_device(cuda_device)) {}
RowMoves::~RowMoves() = default;

void RowMoves::put(std::vector<Pairs>& kinds, const at::Tensor& to, const at::Tensor& from) const {
  if (to.numel() == 0) return;
  auto kind = std::ranges::find_if(kinds, [&](const Pairs& pairs) {
    return pairs.to[0].scalar_type() == to.scalar_type() &&
           pairs.from[0].scalar_type() == from.scalar_type();
  });
  if (kind == kinds.end()) kind = kinds.insert(kind, Pairs());
  kind->to.push_back(to);
  kind->from.push_back(from);
}

void RowMoves::copy(const at::Tensor& to, const at::Tensor& from) {
  copied_bytes_ += static_cast<int64_t>(from.nbytes());
  if (together_) return put(copies_, to, from);
  to.copy_(from);
}

void RowMoves::add(const at::Tensor& to, const at::Tensor& from) {
  if (together_) return put(sums_, to, from);
  at::Tensor(to).add_(from);
}

void RowMoves::clear(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  if (together_) return cleared_.push_back(tensor);
  at::Tensor(tensor).zero_();
}

void RowMoves::play() {
  for (const auto& [to, from] : copies_) {
    to.size() == 1 ? void(to[0].copy_(from[0])) : at::_foreach_copy_(to, from);
  }
  if (cleared_.size() == 1) cleared_[0].zero_();
  if (cleared_.size() > 1) at::_foreach_zero_(cleared_);
  for (const auto& [to, from] : sums_) {
    if (to.size() > 1 && to[0].scalar_type() == from[0].scalar_type()) {
      at::_foreach_add_(to, from);
    } else {
      for (size_t i = 0; i < to.size(); ++i) at::Tensor(to[i]).add_(from[i]);
    }
  }
  copies_.clear();
  cleared_.clear();
  sums_.clear();
}

}  // namespace distca
