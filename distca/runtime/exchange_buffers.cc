#include "distca/runtime/exchange_buffers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"

namespace distca {
namespace {

bool resends(const Program& program) {
  return std::ranges::any_of(program.ops,
                             [](const Op& op) { return op.kind == OpKind::kRedispatch; });
}

}  // namespace

struct ExchangeBuffers::State {
  /// The n-th buffer of a role keeps its memory from program to program, wherever it stands in
  /// their lists.
  std::map<BufferRole, std::vector<at::Tensor>> memory;
  struct Prepared {
    Buffer buffer;
    std::byte* data;
  };
  std::vector<Prepared> prepared;
  int cuda_device = -1;
  int64_t allocations = 0;
};

ExchangeBuffers::ExchangeBuffers(int cuda_device) : state_(std::make_unique<State>()) {
  state_->cuda_device = cuda_device;
}
ExchangeBuffers::~ExchangeBuffers() = default;

void ExchangeBuffers::prepare(const Program& program) {
  State& s = *state_;
  const at::Device device = aten_device(s.cuda_device);
  s.prepared.clear();
  if (resends(program)) {
    const auto is_qkv_in = [](const Buffer& b) { return b.role == BufferRole::kQkvIn; };
    std::vector<at::Tensor>& held = s.memory[BufferRole::kQkvIn];
    const auto own = static_cast<size_t>(std::ranges::count_if(program.buffers, is_qkv_in));
    if (held.size() > own) held.resize(own);
  }
  std::map<BufferRole, size_t> used;
  for (const Buffer& buffer : program.buffers) {
    std::vector<at::Tensor>& of_role = s.memory[buffer.role];
    const size_t index = used[buffer.role]++;
    if (index == of_role.size()) of_role.emplace_back();
    at::Tensor& memory = of_role[index];
    if (!memory.defined() || memory.numel() < buffer.bytes) {
      memory.reset();  // first: both need not fit
      memory = at::empty({buffer.bytes}, at::dtype(at::kByte).device(device));
      ++s.allocations;
    }
    auto* data = static_cast<std::byte*>(memory.data_ptr());
    DISTCA_CHECK_EQ(reinterpret_cast<uintptr_t>(data) % kMessageAlignment, 0u);
    s.prepared.push_back({buffer, data});
  }
}

std::byte* ExchangeBuffers::data(int32_t buffer) const { return state_->prepared.at(buffer).data; }
int64_t ExchangeBuffers::bytes(int32_t buffer) const {
  return state_->prepared.at(buffer).buffer.bytes;
}
BufferRole ExchangeBuffers::role(int32_t buffer) const {
  return state_->prepared.at(buffer).buffer.role;
}

int64_t ExchangeBuffers::allocated_bytes() const {
  int64_t bytes = 0;
  for (const auto& [role, of_role] : state_->memory) {
    for (const at::Tensor& memory : of_role) bytes += memory.numel();
  }
  return bytes;
}
int64_t ExchangeBuffers::allocations() const { return state_->allocations; }
int ExchangeBuffers::cuda_device() const { return state_->cuda_device; }

}  // namespace distca
