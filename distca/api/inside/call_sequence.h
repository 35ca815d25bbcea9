#pragma once
// The state that the CoreAttentions of one communicator share: their calls, which are one sequence,
// and the memory of their messages. Include <ATen/ATen.h> before this header. One thread at a time
// uses an object and what it gave.

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/program/program.h"

namespace distca::api {

class Layer;

using MessageMemory = std::shared_ptr<at::Tensor>;

/// Memory of messages that nobody uses, by role: layers and plans have alike ones.
struct SpareMemory : std::enable_shared_from_this<SpareMemory> {
  std::map<BufferRole, std::vector<at::Tensor>> of_role;
  int64_t allocated_bytes = 0;

  /// So many bytes or more; they come back here with their last user.
  MessageMemory take(BufferRole role, int64_t bytes, const at::Device& device) {
    at::Tensor memory;
    std::vector<at::Tensor>& unused = of_role[role];
    if (!unused.empty()) {
      memory = std::move(unused.back());
      unused.pop_back();
    }
    if (!memory.defined() || memory.numel() < bytes) {
      if (memory.defined()) allocated_bytes -= memory.numel();
      memory.reset();  // first: both need not fit
      memory = at::empty({bytes}, at::dtype(at::kByte).device(device));
      allocated_bytes += bytes;
    }
    return {new at::Tensor(std::move(memory)),
            [spare = shared_from_this(), role](at::Tensor* used) {
              spare->of_role[role].push_back(std::move(*used));
              delete used;
            }};
  }
};

struct CallSequence {
  Communicator& comm;
  std::shared_ptr<SpareMemory> spare = std::make_shared<SpareMemory>();
  std::vector<Layer*> to_compute{};  // layers in the order of their calls
  uint32_t calls = 0;                // so far: numbers the messages of the next one
  int64_t sent_bytes = 0;
};

}  // namespace distca::api
