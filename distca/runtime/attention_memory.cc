#include "distca/runtime/attention_memory.h"

#include <algorithm>

#include "distca/kernels/varlen_launches.h"
#include "distca/runtime/task_lists.h"

namespace distca {

AttentionMemory cuda_attention_memory(const AttentionExchange& exchange,
                                      const kernels::Shape& shape, ScalarType type,
                                      const kernels::FlashDevice& device) {
  AttentionMemory memory{};
  const size_t buffers = exchange.rows.receives.size() + 1;  // the first one is local
  for (size_t set = 0; set < kNumTaskSets; ++set) {
    TaskLists tasks = task_lists(exchange, pieces_of(exchange, static_cast<TaskSet>(set)));
    for (kernels::TaskList* list : {&tasks.whole, &tasks.partial, &tasks.backward}) {
      list->keys.resize(buffers);
      std::erase_if(list->tasks, [&](const kernels::Task& task) {
        return !kernels::is_fused(shape, type, task);  // these take the matmul path
      });
    }
    memory[set] = {std::max(kernels::varlen_forward_memory(shape, type, tasks.whole),
                            kernels::varlen_forward_memory(shape, type, tasks.partial)),
                   kernels::varlen_backward_memory(shape, type, tasks.backward, device)};
  }
  return memory;
}

}  // namespace distca
