#include "distca/runtime/exchange_buffers.h"

#include <ATen/ATen.h>

#include <map>
#include <vector>

#include "distca/base/error.h"

namespace distca {

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
  const at::Device device =
      s.cuda_device < 0 ? at::Device(at::kCPU)
                        : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(s.cuda_device));
  s.prepared.clear();
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
