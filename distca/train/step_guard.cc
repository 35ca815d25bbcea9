#include "distca/train/step_guard.h"

#include <cmath>

#include "distca/base/statistics.h"

namespace distca {
namespace {

void add(std::vector<double>& window, double value) {
  window.push_back(value);
  if (window.size() > StepGuard::kWindow) window.erase(window.begin());
}

std::vector<double> numbers(const JsonField& field) {
  std::vector<double> values;
  for (size_t i = 0; i < field.size(); ++i) add(values, field.at(i).number());
  return values;
}

}  // namespace

std::string StepOutcome::describe() const {
  const bool of_norm = kind == Kind::kNormNotFinite || kind == Kind::kNormSpike;
  const char* const what = of_norm ? "gradient norm" : "loss";
  if (kind == Kind::kNormNotFinite || kind == Kind::kLossNotFinite)
    return fmt::format("the {} is not finite", what);
  return fmt::format("the {} {:.4g} is {:.1f} times the median of the steps before ({:.4g})", what,
                     value, value / median, median);
}

StepOutcome StepGuard::check(double loss, double grad_norm) const {
  using Kind = StepOutcome::Kind;
  if (!std::isfinite(grad_norm)) return {.kind = Kind::kNormNotFinite, .value = grad_norm};
  if (!std::isfinite(loss)) return {.kind = Kind::kLossNotFinite, .value = loss};
  if (spike_factor_ == 0 || norms_.size() < kFirst) return {};
  if (const double usual = median(norms_); grad_norm > spike_factor_ * usual)
    return {.kind = Kind::kNormSpike, .value = grad_norm, .median = usual};
  if (const double usual = median(losses_); loss > spike_factor_ * usual)
    return {.kind = Kind::kLossSpike, .value = loss, .median = usual};
  return {};
}

void StepGuard::accept(double loss, double grad_norm) {
  add(losses_, loss);
  add(norms_, grad_norm);
}

Json StepGuard::state() const { return {{"losses", losses_}, {"norms", norms_}}; }

void StepGuard::restore(const JsonField& state) {
  losses_ = numbers(state["losses"]);
  norms_ = numbers(state["norms"]);
}

}  // namespace distca
