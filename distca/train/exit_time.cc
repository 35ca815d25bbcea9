#include "distca/train/exit_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/text.h"

namespace distca {
namespace {

constexpr size_t kRecent = 10;
/// Bytes that a rank writes in a second, until a save was measured: a disk that is not fast.
constexpr double kWrittenPerSecond = 200e6;
/// The share of a step's time that its forward pass takes at most.
constexpr double kForwardShare = 0.5;
/// Seconds for what is not measured: weights that travel to rank 0, the end of the processes.
constexpr double kGoodbye = 1;
/// A checkpoint has each weight and AdamW's two moments of it.
constexpr double kStatesOfWeight = 3;

}  // namespace

double launch_begin_s(const std::optional<std::string>& started_at) {
  const double now_s = steady_seconds();
  if (!started_at) return now_s;
  const std::optional<double> started_s = to_number<double>(*started_at);
  DISTCA_THROW_IF(!started_s || !std::isfinite(*started_s), ErrorKind::kUsage,
                  "DISTCA_STARTED_AT = {}: Unix seconds, as date +%s gives them", *started_at);
  return now_s - std::max(0.0, wall_seconds() - *started_s);
}

ExitTime::ExitTime(const Config& config, double begin_s, bool validates, int num_workers)
    : limit_s_(config.train.exit_duration_in_mins > 0 ? 60 * config.train.exit_duration_in_mins
                                                      : std::numeric_limits<double>::infinity()),
      begin_s_(begin_s),
      validation_steps_(validates ? kForwardShare *
                                        static_cast<double>(config.train.validation_nano_batches) /
                                        static_cast<double>(config.batch.nano_batches)
                                  : 0),
      weights_s_((config.model.dtype == ScalarType::kFloat64 ? 8 : 4) *
                 static_cast<double>(config.model.num_parameters()) / kWrittenPerSecond),
      awaits_saves_(!config.checkpoint.async && config.checkpoint.every_steps > 0) {
  save_guess_s_ = kStatesOfWeight * weights_s_ / num_workers;
}

bool ExitTime::is_last(double now_s, double step_s, bool evaluates, double last_save_s) {
  // The first step takes longer than those to come, so it counts only until there is another one.
  if (++steps_ == 2) recent_s_.clear();
  recent_s_.push_back(step_s);
  if (recent_s_.size() > kRecent) recent_s_.pop_front();
  const double longest_s = std::ranges::max(recent_s_);
  const double validation_s = evaluated_s_.value_or(validation_steps_ * longest_s);
  const double save_s = last_save_s > 0 ? last_save_s : save_guess_s_;
  const double before_next_s = (evaluates ? validation_s : 0) + (awaits_saves_ ? save_s : 0);
  const double end_s = validation_s + save_s + weights_s_ + kGoodbye;
  return before_next_s + longest_s + end_s > left_s(now_s);
}

double ExitTime::left_s(double now_s) const { return std::max(0.0, begin_s_ + limit_s_ - now_s); }

}  // namespace distca
