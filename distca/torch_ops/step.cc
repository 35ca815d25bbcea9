#include <ATen/ATen.h>

#include "distca/torch_ops/step.h"

#include <algorithm>
#include <span>

#include "distca/base/error.h"
#include "distca/comm/collectives.h"

namespace distca::torch_ops {
namespace {

/// What a rank says of the first layer of a step. Ranks must agree on all but the first.
struct Announcement {
  int64_t documents;
  int64_t num_heads, num_kv_heads, head_dim, head_dim_v, dtype, window_left;
  double softmax_scale;
};

void check_same(const std::vector<Announcement>& all) {
  const auto check = [&](const char* name, auto member) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      DISTCA_THROW_IF(
          all[rank].*member != all[0].*member, ErrorKind::kUsage,
          "rank {} calls attention with {} = {}, rank 0 with {}: all ranks call the same layer",
          rank, name, all[rank].*member, all[0].*member);
    }
  };
  check("num_heads", &Announcement::num_heads);
  check("num_kv_heads", &Announcement::num_kv_heads);
  check("head_dim", &Announcement::head_dim);
  check("head_dim of v", &Announcement::head_dim_v);
  check("dtype (0: fp64, 1: fp32, 2: bf16)", &Announcement::dtype);
  check("window_left", &Announcement::window_left);
  check("softmax_scale", &Announcement::softmax_scale);
}

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

}  // namespace

Call::~Call() {
  const std::scoped_lock lock(ranks_->mutex);
  backward_.reset();
  forward_.reset();
}

void Call::compute() {
  const std::scoped_lock lock(ranks_->mutex);
  if (forward_) forward_->compute();
}

at::Tensor Call::wait() {
  const std::scoped_lock lock(ranks_->mutex);
  DISTCA_THROW_IF(!forward_, ErrorKind::kUsage,
                  "the forward of this layer was freed by its backward");
  const at::Tensor o = forward_->wait();
  if (!o_version_) {
    forward_->drop_inputs();
    o_version_ = version_of(o);
  }
  return twin_of(o);
}

void Call::begin_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v) {
  const std::scoped_lock lock(ranks_->mutex);
  DISTCA_THROW_IF(!forward_, ErrorKind::kUsage,
                  "backward through attention a second time: the first needs retain_graph=True");
  DISTCA_THROW_IF(o_version_ != version_of(forward_->wait()), ErrorKind::kUsage,
                  "the output of attention was changed in place: backward needs it as it was");
  ++ranks_->backwards;
  backward_ = attention_.backward(*forward_, d_o, q, k, v);
}

void Call::compute_backward() {
  const std::scoped_lock lock(ranks_->mutex);
  DISTCA_CHECK(backward_.has_value(), "core attention of backward before its dispatch");
  backward_->compute();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> Call::end_backward(bool last) {
  const std::scoped_lock lock(ranks_->mutex);
  DISTCA_CHECK(backward_.has_value(), "the end of a backward that has not begun");
  auto gradients = backward_->wait();
  backward_.reset();
  over_ = true;
  if (last) forward_.reset();
  return gradients;
}

Step::Step(std::shared_ptr<Ranks> ranks, const std::vector<int64_t>& cu_seqlens, const Kind& kind,
           int64_t window_left)
    : ranks_(std::move(ranks)) {
  const std::scoped_lock lock(ranks_->mutex);
  Communicator& comm = ranks_->comm();
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < cu_seqlens.size(); ++i)
    lengths.push_back(cu_seqlens[i] - cu_seqlens[i - 1]);
  const api::Shape& shape = kind.shape;
  const auto said = all_gather(comm,
                               Announcement{.documents = static_cast<int64_t>(lengths.size()),
                                            .num_heads = shape.num_heads,
                                            .num_kv_heads = shape.num_kv_heads,
                                            .head_dim = shape.head_dim,
                                            .head_dim_v = shape.head_dim_v,
                                            .dtype = static_cast<int64_t>(shape.dtype),
                                            .window_left = window_left,
                                            .softmax_scale = kind.softmax_scale},
                               "telling how many documents there are");
  check_same(said);
  const auto most = std::ranges::max(said, {}, &Announcement::documents).documents;
  lengths.resize(most);
  std::vector<std::byte> all(0);
  if (most > 0)
    all = all_gather_bytes(comm, std::as_bytes(std::span(lengths)), "telling lengths of documents");
  request_.num_ranks = comm.size();
  request_.cu_seqlens = {0};
  for (int rank = 0; rank < comm.size(); ++rank) {
    const int64_t begin = request_.cu_seqlens.back();
    const auto* const theirs = reinterpret_cast<const int64_t*>(all.data()) + rank * most;
    for (int64_t i = 0; i < said[rank].documents; ++i)
      request_.cu_seqlens.push_back(request_.cu_seqlens.back() + theirs[i]);
    std::vector<Range>& tokens = request_.tokens.emplace_back();
    if (request_.cu_seqlens.back() > begin) tokens.push_back({begin, request_.cu_seqlens.back()});
  }
}

const api::BatchPlan& Step::plan(const Kind& kind, int64_t window_left) {
  const auto known = std::ranges::find_if(planned_, [&](const Planned& one) {
    return one.shape == kind.shape && one.window_left == window_left;
  });
  if (known != planned_.end()) return known->plan;
  request_.shape = kind.shape;
  request_.window_left = window_left;
  planned_.push_back(
      {.shape = kind.shape, .window_left = window_left, .plan = ranks_->plan(request_)});
  ranks_->attention(kind).compare(planned_.back().plan);
  return planned_.back().plan;
}

std::shared_ptr<Call> Step::start(int64_t layer, const Kind& kind, int64_t window_left,
                                  const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const std::scoped_lock lock(ranks_->mutex);
  api::CoreAttention& attention = ranks_->attention(kind);
  auto call = std::make_shared<Call>(ranks_, attention,
                                     attention.forward(plan(kind, window_left), q, k, v));
  ++ranks_->forwards;
  if (layer >= 0) calls_[layer] = call;
  return call;
}

std::shared_ptr<Call> Step::call(int64_t layer) const {
  const std::scoped_lock lock(ranks_->mutex);
  const auto found = calls_.find(layer);
  return found == calls_.end() ? nullptr : found->second.lock();
}

}  // namespace distca::torch_ops
