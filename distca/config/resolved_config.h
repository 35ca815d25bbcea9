#pragma once
// Values that a run has found for keys that name something outside the configuration. A plain
// value.

#include <string>

namespace distca {

/// Values that a rank derived from keys whose words may mean something else on another rank.
struct ResolvedConfig {
  std::string price;                    // the unit of loads: profile_name of plan.profile, or pairs
  std::string kernel;                   // the one that attention.kernel chose
  std::string kernel_passed_over = {};  // AttentionKernel::passed_over
  std::string data;  // the contents of data.prefix (DataBlend::summary), wherever it lies
  /// The instructions that PyTorch computes with (ATEN_CPU_CAPABILITY); "" on a device.
  std::string isa;
  std::string checkpoint = "none";  // the one that the run goes on from, wherever it lies
};

}  // namespace distca
