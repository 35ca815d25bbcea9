// The request to the attention kernel that a configuration makes.

#include <utility>

#include "distca/config/config.h"

namespace distca {

MeasuredKernels measured_kernels(const AttentionProfile* profile) {
  MeasuredKernels measured;
  if (profile == nullptr) return measured;
  for (const auto& [names, choices] : {std::pair(&profile->forward_kernels, &measured.forward),
                                       std::pair(&profile->backward_kernels, &measured.backward)}) {
    for (const std::string& name : *names) choices->push_back(kernel_choice(name));
  }
  return measured;
}

KernelRequest kernel_request(const Config& config) {
  const LlamaConfig of_rank = config.model.divided(config.tensor_ranks());
  // A profile of such heads says which kernel is faster, however many heads there are.
  const AttentionShape shape = config.rank_shape().attention;
  const AttentionProfile* const profile = config.attention_profile.get();
  const bool fits = profile != nullptr && profile->shape.type == shape.type &&
                    profile->shape.head_dim_qk == shape.head_dim_qk &&
                    profile->shape.head_dim_v == shape.head_dim_v &&
                    profile->shape.num_heads * shape.num_kv_heads ==
                        shape.num_heads * profile->shape.num_kv_heads;
  return {.choice = config.attention.kernel,
          .shape = of_rank.attention_shape(),
          .type = of_rank.dtype,
          .threads = static_cast<int>(config.train.threads_per_rank),
          .cuda_device = config.on_cuda() ? 0 : -1,
          .measured = measured_kernels(fits ? profile : nullptr)};
}

}  // namespace distca
