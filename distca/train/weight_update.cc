#include "distca/train/weight_update.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "distca/base/error.h"
#include "distca/comm/as_on_device.h"
#include "distca/comm/host_read.h"
#include "distca/comm/ordered_sum.h"

namespace distca {
namespace {

/// The sum over a block, in lanes, so that compilers make vectors of it. Not BLAS: its sums differ
/// between machines and numbers of threads, and the norm scales every replica's update.
template <typename T>
double square_sum(const T* values) {
  constexpr int64_t kLanes = 8;
  static_assert(kFlatBlock % kLanes == 0);
  double lanes[kLanes] = {};
  for (int64_t begin = 0; begin < kFlatBlock; begin += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[begin + lane]);
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

WeightUpdate::WeightUpdate(const Program& program, const ExchangeBuffers& buffers,
                           Communicator& comm, const LlamaConfig& model,
                           const UpdateRequest& request)
    : program_(program),
      buffers_(buffers),
      request_(request),
      rank_(comm.rank()),
      under_way_(program, comm) {
  DISTCA_CHECK(request.optimizer != nullptr || program.gradients == nullptr,
               "a program that sums gradients is played without an optimizer");
  if (request.optimizer == nullptr) return;
  DISTCA_CHECK(program.gradients == request.optimizer->exchange(),
               "the program sums gradients in another way than the optimizer");
  DISTCA_CHECK(program.stage.count == 1 || request.all_stages != nullptr,
               "the norm of {} stages, which have no group", program.stage.count);
  const at::Tensor& gradients = request.optimizer->gradients();
  int64_t blocks = 0;
  Stage stage = program.stage;
  for (int index = 0; index < stage.tensor.size; ++index) {
    first_blocks_.push_back(blocks);
    // A table is long, and this is done in every step: only for what others hold.
    const bool is_own = index == program.stage.tensor.index;
    stage.tensor.index = index;
    blocks += (is_own ? gradients.numel() : flat_layout(weight_table(model, stage)).elements) /
              kFlatBlock;
  }
  squares_.assign(blocks + 1, 0.0);
  if (!as_on_device(comm.cuda_device())) return;
  device_squares_ = std::make_unique<at::Tensor>(
      at::zeros({static_cast<int64_t>(squares_.size())}, gradients.options().dtype(at::kDouble)));
}

WeightUpdate::~WeightUpdate() = default;

void WeightUpdate::begin_sum() {
  if (!sums_ && request_.before_sum) request_.before_sum();
  sums_ = true;
}

void WeightUpdate::issue(const Op& op) {
  begin_sum();
  Optimizer& optimizer = *request_.optimizer;
  const GradientBucket& bucket = program_.gradients->buckets[op.bucket];
  const auto begin = [](const at::Tensor& tensor) {
    return static_cast<std::byte*>(tensor.data_ptr());
  };
  std::byte* const from = op.kind == OpKind::kWeightGather
                              ? begin(optimizer.storage())
                              : begin(optimizer.gradients().narrow(0, bucket.elements.begin, 1));
  std::byte* const to =
      op.kind == OpKind::kGradReduce ? (op.in >= 0 ? buffers_.data(op.in) : nullptr) : from;
  under_way_.issue(op, from, to);
}

void WeightUpdate::play(const Op& op, double loss_sum) {
  if (request_.optimizer == nullptr) return;
  const c10::NoGradGuard no_grad;
  begin_sum();
  if (op.kind == OpKind::kGradAdd) return add(op);
  if (op.kind == OpKind::kGradNorm) return norm(loss_sum);
  DISTCA_CHECK(op.kind == OpKind::kOptimizer, "not of the weights: {}", describe(op));
  if (updates_) request_.optimizer->update(op.bucket);
}

void WeightUpdate::add(const Op& op) {
  const GradientBucket& bucket = program_.gradients->buckets[op.bucket];
  at::Tensor own = request_.optimizer->gradients().narrow(0, bucket.own.begin, bucket.own.size());
  if (!op.reads.empty()) {
    at::Tensor sum;  // begins with x0, not 0 + x0: that would turn -0 into 0
    const auto add_part = [&sum](const at::Tensor& part) {
      sum.defined() ? sum.add_(part) : sum = part;
    };
    bool has_own = false;
    for (const PeerMessage& received : bucket.reduce_receives.messages) {  // by rank
      if (!has_own && received.peer > rank_) {
        add_part(own);
        has_own = true;
      }
      add_part(
          at::from_blob(buffers_.data(op.reads[0]) + received.offset, own.sizes(), own.options()));
    }
    if (!has_own) add_part(own);
    if (!sum.is_same(own)) own.copy_(sum);
  }
  put_square_sums(own, first_block_of(bucket) + bucket.own.begin / kFlatBlock);
}

/// Gradients that several ranks of a server share lie in the same blocks of each, and count as the
/// first one's.
int64_t WeightUpdate::first_block_of(const GradientBucket& bucket) const {
  const std::vector<int>& ranks = program_.gradients->groups[bucket.group];
  return first_blocks_[ranks.front() % program_.stage.tensor.size];
}

/// Puts the sum of each block of a slice.
void WeightUpdate::put_square_sums(const at::Tensor& slice, int64_t first_block) {
  const int64_t blocks = slice.numel() / kFlatBlock;
  if (device_squares_) {
    device_squares_->narrow(0, first_block, blocks)
        .copy_(slice.view({blocks, kFlatBlock}).to(at::kDouble).square().sum(1));
    return;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kFlatBlock;
    squares_[first_block + block] = slice.scalar_type() == at::kDouble
                                        ? square_sum(slice.const_data_ptr<double>() + begin)
                                        : square_sum(slice.const_data_ptr<float>() + begin);
  }
}

/// Every block is some rank's and zero on the others: the same bits for every number of ranks. Of
/// what is tied, it may be another stage's, and counts there.
void WeightUpdate::sum_over_workers(double loss_sum) {
  constexpr const char* kOperation = "gradient norm";
  if (!device_squares_) {
    squares_.back() = loss_sum;
    return ordered_sum(*request_.workers, std::span(squares_), kOperation);
  }
  at::Tensor& squares = *device_squares_;
  squares[-1].fill_(loss_sum);
  ordered_sum(*request_.workers, squares, kOperation);
  const at::Tensor host = host_copy(squares);
  request_.workers->throw_if_failed();
  std::copy_n(host.const_data_ptr<double>(), squares_.size(), squares_.begin());
}

/// Makes sums of squares and losses of this stage those of all, in the order of the stages.
void WeightUpdate::sum_over_stages(double& squares, double& loss) const {
  std::vector<double> of_stages(program_.stage.count + 1, 0.0);
  if (request_.workers->rank() == 0) {
    of_stages[program_.stage.index] = squares;
    of_stages.back() = loss;
  }
  // The squares of each stage are one rank's and zero on the others; the loss is the last stage's.
  ordered_sum(*request_.all_stages, std::span(of_stages), "gradient norm of all stages");
  loss = of_stages.back();
  of_stages.pop_back();
  squares = std::accumulate(of_stages.begin(), of_stages.end(), 0.0);
}

void WeightUpdate::norm(double loss_sum) {
  if (request_.before_norm) request_.before_norm();
  sum_over_workers(loss_sum);
  double sum = 0;
  for (size_t i = 0; i + 1 < squares_.size(); ++i) sum += squares_[i];
  double loss = squares_.back();
  if (program_.stage.count > 1) sum_over_stages(sum, loss);
  sum_ = {.norm = std::sqrt(sum), .loss_sum = loss};
  updates_ = !request_.accepts || request_.accepts(sum_);
  if (!updates_) return;
  const bool clips = request_.max_grad_norm > 0 && sum_.norm > request_.max_grad_norm;
  request_.optimizer->begin_update(request_.lr, clips ? request_.max_grad_norm / sum_.norm : 1.0);
}

}  // namespace distca
