#include "distca/train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace distca {

double learning_rate(const Config& config, int64_t step) {
  using Decay = Config::Optimizer::Decay;
  const Config::Optimizer& options = config.optimizer;
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  if (options.schedule == Decay::kConstant) return options.lr;
  const int64_t last = config.decay_end() - 1;
  const int64_t begin =
      options.schedule == Decay::kWsd ? last - options.wsd_decay_steps : options.warmup_steps;
  const int64_t decay_steps = std::max<int64_t>(last - begin, 1);
  const double progress =
      std::clamp(static_cast<double>(step - begin) / static_cast<double>(decay_steps), 0.0, 1.0);
  const double floor = options.lr * options.min_lr_ratio;
  if (options.schedule == Decay::kCosine)
    return floor + (options.lr - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  const double share =
      options.schedule == Decay::kLinear ? 1 - progress : 2 * std::pow(0.5, progress) - 1;
  return floor + (options.lr - floor) * share;
}

}  // namespace distca
