#include <ATen/ATen.h>

#include "distca/torch_ops/step.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <exception>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/device_stream.h"

namespace distca::torch_ops {
namespace {

constexpr size_t kMostKinds = 1000;  // kinds in a Step, which a rank alone may use for all forwards

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0
                               : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

/// Another tensor on the same memory, which notices writes through it as the first one does. The
/// first is ours; autograd makes the other one a part of its graph.
at::Tensor twin_of(const at::Tensor& tensor) {
  if (tensor.is_inference()) return at::alias(tensor);
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

/// A call's turn at the ranks, which it has for itself. The device is current, and what its stream
/// is given comes behind what the turns before have given theirs.
class Turn {
 public:
  Turn(Ranks& ranks, int cuda_device) : lock_(ranks.mutex) {
    if (cuda_device < 0) return;
    const at::Device device = aten_device(cuda_device);
    current_.reset_device(device);
    const c10::Stream now = current_stream(device);
    auto& latest = ranks.latest_streams[cuda_device];
    if (latest && *latest == now) return;
    if (latest) follow(now, end_of(*latest));
    latest = std::make_shared<c10::Stream>(now);
  }

 private:
  const std::scoped_lock<std::mutex> lock_;
  c10::OptionalDeviceGuard current_;
};

void note_balance(Balance& balance, const api::BatchPlan& plan, int64_t linear_work) {
  const api::BatchPlan::Work work = plan.work(linear_work);
  balance.work.at_home += work.at_home;
  balance.work.planned += work.planned;
  balance.work.mean += work.mean;
  balance.sent_bytes += static_cast<double>(plan.sent_bytes());
}

}  // namespace

Call::~Call() {
  try {
    const Turn turn(*ranks_, cuda_device_);
    backward_.reset();
    forward_.reset();
  } catch (const std::exception&) {
    // The device is lost, or the process ends: nobody wants anything of this call any more.
  }
}

void Call::compute() {
  const Turn turn(*ranks_, cuda_device_);
  if (forward_) forward_->compute();
}

at::Tensor Call::wait() {
  const Turn turn(*ranks_, cuda_device_);
  DISTCA_THROW_IF(!forward_, ErrorKind::kUsage,
                  "the forward of this layer was freed by its backward");
  const at::Tensor o = forward_->wait();
  if (!o_version_) {
    forward_->drop_inputs();
    o_version_ = version_of(o);
  }
  return twin_of(o);
}

at::Tensor Call::lse() {
  const Turn turn(*ranks_, cuda_device_);
  DISTCA_THROW_IF(!forward_, ErrorKind::kUsage,
                  "the forward of this layer was freed by its backward");
  return forward_->lse().t().clone(at::MemoryFormat::Contiguous);
}

void Call::begin_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v) {
  const Turn turn(*ranks_, cuda_device_);
  DISTCA_THROW_IF(!forward_, ErrorKind::kUsage,
                  "backward through attention a second time: the first needs retain_graph=True");
  DISTCA_THROW_IF(o_version_ != version_of(forward_->wait()), ErrorKind::kUsage,
                  "the output of attention was changed in place: backward needs it as it was");
  DISTCA_THROW_IF(
      backward_.has_value(), ErrorKind::kUsage,
      "combine was called twice for one dispatch (use its O twice), or an earlier backward "
      "failed");
  backward_ = attention_->backward(*forward_, d_o, q, k, v);
  ++ranks_->backwards;
}

void Call::compute_backward() {
  const Turn turn(*ranks_, cuda_device_);
  DISTCA_CHECK(backward_.has_value(), "core attention of backward before its dispatch");
  backward_->compute();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> Call::end_backward(bool last) {
  const Turn turn(*ranks_, cuda_device_);
  DISTCA_CHECK(backward_.has_value(), "the end of a backward that has not begun");
  auto gradients = backward_->wait();
  backward_.reset();
  over_ = true;
  if (last) forward_.reset();
  return gradients;
}

std::shared_ptr<Call> Step::start(int64_t layer, const LayerKind& kind, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v) {
  const Turn turn(*ranks_, kind.kind.cuda_device);
  if (agreed_.plan_of(kind) == nullptr) agreed_.add(*ranks_, {kind});
  auto attention = ranks_->attention(kind.kind);  // may meet the others: all agree
  if (kinds_->empty()) ranks_->note_forward(kinds_);
  if (std::ranges::find(*kinds_, kind) == kinds_->end()) {
    if (kinds_->size() >= kMostKinds) kinds_->clear();
    kinds_->push_back(kind);
  }
  api::Forward forward = attention->forward(*agreed_.plan_of(kind), q, k, v, kind.softmax_scale);
  auto call = std::make_shared<Call>(ranks_, std::move(attention), kind.kind.cuda_device,
                                     std::move(forward));
  ++ranks_->forwards;
  note_balance(ranks_->balance, *agreed_.plan_of(kind), kind.linear_work);
  if (layer >= 0) calls_[layer] = call;
  return call;
}

std::shared_ptr<Call> Step::call(int64_t layer) const {
  const std::scoped_lock lock(ranks_->mutex);
  const auto found = calls_.find(layer);
  return found == calls_.end() ? nullptr : found->second.lock();
}

}  // namespace distca::torch_ops
