#pragma once
// The learning rate over a run: warm-up, then what optimizer.schedule says. A pure function, which
// any thread may call.

#include <cstdint>

#include "distca/config/config.h"

namespace distca {

/// The learning rate of `step`, which counts from 0. It rises linearly to lr during the warm-up.
/// Then it is constant, or it falls as optimizer.schedule says, and reaches lr * min_lr_ratio at
/// the last of the steps over which it decays (Config::decay_end). Later steps have that, too.
double learning_rate(const Config& config, int64_t step);

}  // namespace distca
