#include "distca/train/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "distca/base/error.h"
#include "distca/comm/ordered_sum.h"

namespace distca {
namespace {

/// In lanes, so that compilers make vectors of it. Not BLAS: its sums differ between machines and
/// numbers of threads, and the norm scales every replica's update.
template <typename T>
double square_sum(const T* values, int64_t count) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    for (int64_t lane = 0; lane < std::min(kLanes, count - begin); ++lane) {
      const auto value = static_cast<double>(values[begin + lane]);
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double square_sum(const at::Tensor& chunk) {
  if (!chunk.is_cpu()) {
    const at::Tensor wide = chunk.to(at::kDouble);
    return wide.dot(wide).item<double>();
  }
  return chunk.scalar_type() == at::kDouble
             ? square_sum(chunk.const_data_ptr<double>(), chunk.numel())
             : square_sum(chunk.const_data_ptr<float>(), chunk.numel());
}

double global_norm(const at::Tensor& flat) {
  double sum = 0;
  for (int64_t begin = 0; begin < flat.numel(); begin += kFlatBlock)
    sum += square_sum(flat.narrow(0, begin, kFlatBlock));
  return std::sqrt(sum);
}

}  // namespace

double learning_rate(const Config::Optimizer& options, int64_t step, int64_t total_steps) {
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  const int64_t decay_steps = std::max<int64_t>(total_steps - 1 - options.warmup_steps, 1);
  const double progress = std::min(
      1.0, static_cast<double>(step - options.warmup_steps) / static_cast<double>(decay_steps));
  const double floor = options.lr * options.min_lr_ratio;
  return floor + (options.lr - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

struct Optimizer::State {
  Config::Optimizer options;
  std::vector<at::Tensor> parameters;
  at::Tensor sum;   // what ranks sum: the gradients of all parameters, end to end, and the loss
  at::Tensor flat;  // the gradients
  std::vector<at::Tensor> exp_avg, exp_avg_sq;  // views of AdamW's moments
  at::Tensor updates;                           // as AdamW counts them

  /// Parameters that AdamW treats alike, with all that it reads and writes of them.
  struct Group {
    double weight_decay = 0;
    std::vector<at::Tensor> parameters, gradients, exp_avg, exp_avg_sq, updates;
  };
  std::array<Group, 2> groups;  // those that decay, and those that do not
};

Optimizer::Optimizer(const std::vector<Weight>& weights, const std::vector<at::Tensor>& parameters,
                     const Config::Optimizer& options)
    : state_(std::make_unique<State>()) {
  DISTCA_CHECK_EQ(weights.size(), parameters.size());
  State& s = *state_;
  s.options = options;
  s.parameters = parameters;
  const FlatLayout layout = flat_layout(weights);
  const int64_t total = layout.elements;
  const at::TensorOptions plain = parameters[0].options().requires_grad(false);
  s.sum = at::zeros({total + 1}, plain);
  s.flat = s.sum.narrow(0, 0, total);
  s.updates = at::zeros({}, plain.dtype(at::kFloat));
  s.groups[0].weight_decay = options.weight_decay;
  const at::Tensor exp_avg = at::zeros({total}, plain), exp_avg_sq = at::zeros({total}, plain);
  for (size_t i = 0; i < weights.size(); ++i) {
    at::Tensor& parameter = s.parameters[i];
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, layout.begins[i], parameter.numel()).view(parameter.sizes());
    };
    parameter.mutable_grad() = part(s.flat);
    s.exp_avg.push_back(part(exp_avg));
    s.exp_avg_sq.push_back(part(exp_avg_sq));
    State::Group& group = s.groups[weights[i].decays() ? 0 : 1];
    group.parameters.push_back(parameter.detach());
    group.gradients.push_back(parameter.grad());
    group.exp_avg.push_back(s.exp_avg.back());
    group.exp_avg_sq.push_back(s.exp_avg_sq.back());
    group.updates.push_back(s.updates);
  }
}

Optimizer::~Optimizer() = default;

void Optimizer::zero_gradients() { state_->flat.zero_(); }

GradientSum Optimizer::sum_and_clip(Communicator& comm, double loss_sum) {
  State& s = *state_;
  for (const at::Tensor& parameter : s.parameters) {
    DISTCA_CHECK(parameter.grad().storage().data() == s.flat.storage().data(),
                 "a gradient left the flat buffer");
  }
  const at::Tensor loss = s.sum.narrow(0, s.flat.numel(), 1);
  loss.fill_(loss_sum);
  ordered_sum(comm, s.sum, "gradient sum");
  const double norm = global_norm(s.flat);
  if (s.options.max_grad_norm > 0 && norm > s.options.max_grad_norm) s.flat.mul_(s.options.max_grad_norm / norm);
  return {.norm = norm, .loss_sum = loss.item<double>()};
}

void Optimizer::update(double lr) {
  const State& s = *state_;
  s.updates.add_(1);
  for (const State::Group& group : s.groups) {
    if (group.parameters.empty()) continue;
    at::_fused_adamw_(group.parameters, group.gradients, group.exp_avg, group.exp_avg_sq,
                      /*max_exp_avg_sqs=*/{}, group.updates, lr, s.options.beta1, s.options.beta2,
                      group.weight_decay, s.options.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

int64_t Optimizer::updates() const { return std::llround(state_->updates.item<double>()); }

const std::vector<at::Tensor>& Optimizer::state(StatePart part) const {
  if (part == StatePart::kWeight) return state_->parameters;
  return part == StatePart::kExpAvg ? state_->exp_avg : state_->exp_avg_sq;
}

void Optimizer::restore(int64_t updates) { state_->updates.fill_(updates); }

}  // namespace distca
