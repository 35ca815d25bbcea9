#include "distca/train/optimizer.h"

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <algorithm>
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
  std::vector<at::Tensor> parameters, exp_avg, exp_avg_sq;  // moments: empty until needed
  double max_norm;
  at::Tensor sum;   // what ranks sum: the gradients of all parameters, end to end, and the loss
  at::Tensor flat;  // the gradients
  std::unique_ptr<torch::optim::AdamW> adamw;

  torch::optim::AdamWParamState& of(const at::Tensor& parameter) {
    auto& state = adamw->state()[parameter.unsafeGetTensorImpl()];
    if (!state) {  // as AdamW's first step would make it
      auto made = std::make_unique<torch::optim::AdamWParamState>();
      made->step(0);
      made->exp_avg(at::zeros_like(parameter.detach()));
      made->exp_avg_sq(at::zeros_like(parameter.detach()));
      state = std::move(made);
    }
    return static_cast<torch::optim::AdamWParamState&>(*state);
  }
};

Optimizer::Optimizer(const std::vector<Weight>& weights, const std::vector<at::Tensor>& parameters,
                     const Config::Optimizer& options)
    : state_(std::make_unique<State>()) {
  DISTCA_CHECK_EQ(weights.size(), parameters.size());
  State& s = *state_;
  s.parameters = parameters;
  s.max_norm = options.max_grad_norm;
  const FlatLayout layout = flat_layout(weights);
  const int64_t total = layout.elements;
  s.sum = at::zeros({total + 1}, parameters[0].options().requires_grad(false));
  s.flat = s.sum.narrow(0, 0, total);
  std::vector<at::Tensor> matrices, vectors;  // those that decay, and those that do not
  for (size_t i = 0; i < weights.size(); ++i) {
    at::Tensor& parameter = s.parameters[i];
    parameter.mutable_grad() =
        s.flat.narrow(0, layout.begins[i], parameter.numel()).view(parameter.sizes());
    (weights[i].decays() ? matrices : vectors).push_back(parameter);
  }
  auto adamw =
      torch::optim::AdamWOptions(options.lr).betas({options.beta1, options.beta2}).eps(options.eps);
  auto decayed = std::make_unique<torch::optim::AdamWOptions>(adamw);
  decayed->weight_decay(options.weight_decay);
  auto plain = std::make_unique<torch::optim::AdamWOptions>(adamw);
  plain->weight_decay(0.0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::move(decayed));
  groups.emplace_back(vectors, std::move(plain));
  s.adamw = std::make_unique<torch::optim::AdamW>(groups, adamw);
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
  if (s.max_norm > 0 && norm > s.max_norm) s.flat.mul_(s.max_norm / norm);
  return {.norm = norm, .loss_sum = loss.item<double>()};
}

void Optimizer::update(double lr) {
  for (torch::optim::OptimizerParamGroup& group : state_->adamw->param_groups())
    group.options().set_lr(lr);
  state_->adamw->step();
}

int64_t Optimizer::updates() const {
  const auto& all = state_->adamw->state();
  const auto found = all.find(state_->parameters[0].unsafeGetTensorImpl());
  if (found == all.end()) return 0;
  return static_cast<const torch::optim::AdamWParamState&>(*found->second).step();
}

const std::vector<at::Tensor>& Optimizer::state(StatePart part) {
  State& s = *state_;
  if (part == StatePart::kWeight) return s.parameters;
  s.exp_avg.clear();
  s.exp_avg_sq.clear();
  for (const at::Tensor& parameter : s.parameters) {
    const torch::optim::AdamWParamState& state = s.of(parameter);
    s.exp_avg.push_back(state.exp_avg());
    s.exp_avg_sq.push_back(state.exp_avg_sq());
  }
  return part == StatePart::kExpAvg ? s.exp_avg : s.exp_avg_sq;
}

void Optimizer::restore(int64_t updates) {
  for (const at::Tensor& parameter : state_->parameters) state_->of(parameter).step(updates);
}

}  // namespace distca
