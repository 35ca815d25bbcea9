#include "distca/cost/attention_profile.h"

#include <fmt/format.h>

#include "distca/base/hash.h"

namespace distca {

std::string profile_name(const AttentionProfile& profile) {
  Fnv1a64 hash;
  const AttentionShape& shape = profile.shape;
  for (const int64_t value : {shape.num_heads, shape.num_kv_heads, shape.head_dim_qk,
                              shape.head_dim_v, shape.element_bytes}) {
    hash.add(std::to_string(value) + " ");
  }
  for (const auto* values :
       {&profile.q_tokens, &profile.kv_tokens, &profile.forward_ns, &profile.backward_ns}) {
    for (const int64_t value : *values) hash.add(std::to_string(value) + " ");
    hash.add("\n");
  }
  return fmt::format("{} {}@{:016x}", profile.machine, profile.path, hash.value());
}

}  // namespace distca
