// The attention kernels that a caller may name.

#include <optional>

#include "distca/api/core_attention.h"
#include "distca/base/error.h"
#include "distca/kernels/kernel_choice.h"

namespace distca::api {

std::vector<std::string> kernel_names() { return distca::kernel_names(); }

std::string compiled_kernels_folder(int64_t head_dim, std::string dtype,
                                    int64_t heads_of_a_key_head) {
  const std::optional<ScalarType> type = scalar_type(dtype);
  DISTCA_THROW_IF(!type, ErrorKind::kUsage, "dtype = {}: no type of numbers", dtype);
  return distca::compiled_kernels_folder(head_dim, *type, heads_of_a_key_head);
}

}  // namespace distca::api
