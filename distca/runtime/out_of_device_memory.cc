#include "distca/runtime/out_of_device_memory.h"

namespace distca {

std::string asked_for(const std::exception& error) {
  const std::string text = first_line(error);
  return text.substr(0, text.find(". Including"));
}

Error device_is_full(int rank, const std::string& where) {
  return {ErrorKind::kIo,
          "rank {} ran out of its device's memory in {}: lower batch.nano_batch_tokens or "
          "plan.max_memory_gib, or set train.recompute = full",
          rank, where};
}

}  // namespace distca
