#include "distca/runtime/cuda/kernel_profiles.h"

#include <cmath>

#include "distca/base/error.h"
#include "distca/kernels/kernel_choice.h"
#include "distca/kernels/varlen_launches.h"

namespace distca {
namespace {

/// Takes the faster kernel of each class for one pass: puts its times in place of ATen's, and
/// returns the kernels' names.
std::vector<std::string> take_fastest(const AttentionProfile& grid, bool by_queries,
                                      const std::vector<int64_t>& flash4,
                                      std::vector<int64_t>& ns) {
  const size_t columns = grid.kv_tokens.size();
  const auto class_of = [&](size_t entry) {
    return static_cast<size_t>(kernels::length_class(by_queries ? grid.q_tokens[entry / columns]
                                                                : grid.kv_tokens[entry % columns]));
  };
  std::vector<double> logarithms;  // [class] of FlashAttention 4's times as shares of ATen's, added
  for (size_t i = 0; i < ns.size(); ++i) {
    if (logarithms.size() <= class_of(i)) logarithms.resize(class_of(i) + 1);
    if (ns[i] == 0) continue;
    logarithms[class_of(i)] +=
        std::log(static_cast<double>(flash4[i]) / static_cast<double>(ns[i]));
  }
  std::vector<std::string> names;
  for (const double logarithm : logarithms)
    names.emplace_back(kernel_name(logarithm < 0 ? KernelChoice::kFa4 : KernelChoice::kAten));
  for (size_t i = 0; i < ns.size(); ++i) {
    if (logarithms[class_of(i)] < 0) ns[i] = flash4[i];
  }
  return names;
}

}  // namespace

AttentionProfile fastest_kernels(const AttentionProfile& aten, const AttentionProfile& flash4) {
  DISTCA_CHECK(aten.q_tokens == flash4.q_tokens && aten.kv_tokens == flash4.kv_tokens &&
                   aten.shape == flash4.shape,
               "profiles of two grids");
  AttentionProfile fastest = aten;
  fastest.path = flash4.path + " and " + aten.path;
  fastest.forward_kernels =
      take_fastest(aten, /*by_queries=*/true, flash4.forward_ns, fastest.forward_ns);
  fastest.backward_kernels =
      take_fastest(aten, /*by_queries=*/false, flash4.backward_ns, fastest.backward_ns);
  return fastest;
}

}  // namespace distca
