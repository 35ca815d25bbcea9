#pragma once
// The choice between two kernels for the launches of a CUDA device, by the times that were measured
// of both. Pure functions.

#include "distca/cost/attention_profile.h"

namespace distca {

/// Joins the profiles of ATen's kernel and of FlashAttention 4 on one grid (a CHECK). Of each class
/// of launches (kernels/varlen_launches.h, length_class; of queries in forward, of keys in
/// backward), that kernel is taken whose times are the smaller share of the other's, in the
/// geometric mean over the entries of the class. An entry's time is that of its class's kernel.
AttentionProfile fastest_kernels(const AttentionProfile& aten, const AttentionProfile& flash4);

}  // namespace distca
