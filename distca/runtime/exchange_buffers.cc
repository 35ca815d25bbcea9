#include "distca/runtime/exchange_buffers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"

namespace distca {

void ExchangeBuffers::prepare(const Program& program) {
  const at::Device device = aten_device(cuda_device_);
  prepared_.clear();
  if (std::ranges::find(program.ops, OpKind::kRedispatch, &Op::kind) != program.ops.end()) {
    const auto is_qkv_in = [](const Buffer& b) { return b.role == BufferRole::kQkvIn; };
    auto& held = memory_[BufferRole::kQkvIn];
    const auto own = static_cast<size_t>(std::ranges::count_if(program.buffers, is_qkv_in));
    if (held.size() > own) held.resize(own);
  }
  std::map<BufferRole, size_t> used;
  for (const Buffer& buffer : program.buffers) {
    auto& of_role = memory_[buffer.role];
    const size_t index = used[buffer.role]++;
    if (index == of_role.size()) of_role.push_back(std::make_shared<at::Tensor>());
    at::Tensor& memory = *of_role[index];
    if (!memory.defined() || memory.numel() < buffer.bytes) {
      memory.reset();  // first: both need not fit
      memory = at::empty({buffer.bytes}, at::dtype(at::kByte).device(device));
      ++allocations_;
    }
    auto* data = static_cast<std::byte*>(memory.data_ptr());
    DISTCA_CHECK_EQ(reinterpret_cast<uintptr_t>(data) % kMessageAlignment, 0u);
    prepared_.push_back({buffer, data});
  }
}

int64_t ExchangeBuffers::allocated_bytes() const {
  int64_t bytes = 0;
  for (const auto& [role, of_role] : memory_) {
    for (const auto& memory : of_role) bytes += memory->numel();
  }
  return bytes;
}

}  // namespace distca
