#pragma once
// Measures core attention on a CUDA device for `distca profile --attention --device cuda`, with
// each kernel that could compute it. Thread rule: one thread.

#include "cli/profile_measure.h"

namespace distca::cli {

/// The profile of the kernel that is asked for; for auto, of the fastest of each class of launches
/// (runtime/cuda/kernel_profiles.h). Prints what it measures. Throws Error(kUsage) without a
/// device.
AttentionProfile profile_on_device(const ProfileArguments& arguments);

}  // namespace distca::cli
