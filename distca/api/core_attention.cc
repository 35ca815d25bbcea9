#include "distca/api/core_attention.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "distca/api/inside/call_sequence.h"
#include "distca/api/inside/shape.h"
#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/tags.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"
#include "distca/runtime/attention_kernel.h"
#include "distca/runtime/layer_attention.h"

namespace distca::api {
namespace {

/// Turns autograd and autocast off while it lives, whatever the caller's thread has set.
struct PlainTensors {
  c10::AutoGradMode no_grad{false};
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// [BufferRole] Null means that there is none.
using Buffers = std::array<MessageMemory, kNumBufferRoles>;

/// This rank's part of a plan.
struct RankPlan {
  std::string hash;
  AttentionExchange exchange;
  std::vector<KernelTasks> tasks;  // sets, in the order in which they are computed
};

void check_scale(double softmax_scale) {
  if (!std::isfinite(softmax_scale))
    throw Error(ErrorKind::kUsage, "softmax_scale = {}: a finite number", softmax_scale);
}

KernelRequest kernel_request(const Shape& shape, const CoreAttentionOptions& options,
                             int cuda_device) {
  const std::vector<std::string> names = distca::kernel_names();
  if (std::ranges::find(names, options.kernel) == names.end()) {
    throw Error(ErrorKind::kUsage, "kernel = {}: one of {}", options.kernel,
                fmt::join(names, ", "));
  }
  if (options.threads < 1)
    throw Error(ErrorKind::kUsage, "threads = {}: 1 or more", options.threads);
  check_scale(options.softmax_scale);
  const AttentionShape heads = attention_shape(shape);
  const double scale = options.softmax_scale == 0
                           ? 1 / std::sqrt(static_cast<double>(heads.head_dim_qk))
                           : options.softmax_scale;
  const KernelRequest request{.choice = kernel_choice(options.kernel),
                              .shape = {.num_heads = heads.num_heads,
                                        .num_kv_heads = heads.num_kv_heads,
                                        .head_dim_qk = heads.head_dim_qk,
                                        .head_dim_v = heads.head_dim_v,
                                        .softmax_scale = scale,
                                        .softcap = options.softcap},
                              .type = shape.dtype,
                              .threads = options.threads,
                              .cuda_device = cuda_device};
  if (options.softcap != 0 && cuda_device >= 0)
    throw Error(ErrorKind::kUsage, "softcap = {}: on a CPU only", options.softcap);
  if (const std::string fault = kernel_fault(request); !fault.empty())
    throw Error(ErrorKind::kUsage, "kernel = {} {}", options.kernel, fault);
  return request;
}

constexpr size_t kRememberedPlans = 8;  // layers under way keep theirs in addition

// [Content] In errors.
constexpr std::array kContentNames{"Q, K, V of forward", "O of forward", "dO of backward",
                                   "gradients of backward"};

}  // namespace

struct CoreAttention::Engine {
  const std::shared_ptr<CallSequence> sequence;
  Communicator& comm;
  const AttentionShape shape;
  const ExchangeTypes types;
  AttentionKernel kernel;
  const double softmax_scale;  // the scale of calls that name none
  LayerAttention parts;
  at::Device device;
  std::vector<std::shared_ptr<RankPlan>> plans;  // the latest last

  Engine(std::shared_ptr<CallSequence> calls, const Shape& of, const CoreAttentionOptions& options)
      : sequence(std::move(calls)),
        comm(sequence->comm),
        shape(attention_shape(of)),
        types(exchange_types(of.dtype, options.wide_gradients)),
        kernel(kernel_request(of, options, comm.cuda_device())),
        softmax_scale(kernel.shape().softmax_scale),
        parts(kernel, comm),
        device(aten_device(comm.cuda_device())) {}

  std::shared_ptr<RankPlan> rank_plan(const BatchPlan& plan);
  at::Tensor rows(const char* name, const at::Tensor& given, int64_t tokens, int64_t heads,
                  int64_t dim) const;
  std::array<at::Tensor, 3> qkv(int64_t tokens, double softmax_scale, const at::Tensor& q,
                                const at::Tensor& k, const at::Tensor& v) const;
};

/// One pass of a layer, from the first message to the last.
class Layer {
 public:
  Layer(std::shared_ptr<CoreAttention::Engine> engine, std::shared_ptr<RankPlan> plan, Pass pass,
        HomeRows home, double softmax_scale, MessageMemory received_qkv);
  ~Layer();

  void compute();
  void wait();

  HomeRows home;
  const double softmax_scale;
  QkvGradients gradients;  // once waited for in backward

  const std::shared_ptr<RankPlan>& plan() const { return plan_; }
  const CoreAttention::Engine* engine() const { return engine_.get(); }
  bool is_done() const { return done_; }
  const MessageMemory& received_qkv() const {
    return buffers_[static_cast<size_t>(BufferRole::kQkvIn)];
  }

 private:
  void reserve(BufferRole role, const MessageList& messages);
  LayerPass pass();
  std::unique_ptr<PendingExchange> issue(Content content, Directions directions);
  void compute_tasks();

  std::shared_ptr<CoreAttention::Engine> engine_;
  std::shared_ptr<RankPlan> plan_;
  const Pass pass_;
  const Content result_ = pass_ == Pass::kForward ? Content::kO : Content::kGradient;
  const uint32_t call_;
  const int exceptions_ = std::uncaught_exceptions();
  LayerState layer_state_;
  Buffers buffers_;
  // Null means no messages. Where exchanges end in order, the last has all results, both ways.
  std::unique_ptr<PendingExchange> to_servers_, from_servers_, to_homes_;
  bool done_ = false;
};

Layer::Layer(std::shared_ptr<CoreAttention::Engine> engine, std::shared_ptr<RankPlan> plan,
             Pass pass, HomeRows home_in, double softmax_scale_in, MessageMemory received_qkv)
    : home(std::move(home_in)),
      softmax_scale(softmax_scale_in),
      engine_(std::move(engine)),
      plan_(std::move(plan)),
      pass_(pass),
      call_(engine_->sequence->calls++) {
  const bool forward = pass_ == Pass::kForward;
  const Content sent = forward ? Content::kQkv : Content::kDO;
  reserve(received_into(result_), plan_->exchange.received(result_));
  // First, so that servers know of it before this rank's messages fill the wire.
  if (!engine_->comm.ends_in_order()) from_servers_ = issue(result_, Directions::kReceives);
  if (!forward) buffers_[static_cast<size_t>(BufferRole::kQkvIn)] = std::move(received_qkv);
  reserve(sent_from(sent), plan_->exchange.sent(sent));
  reserve(received_into(sent), plan_->exchange.received(sent));
  to_servers_ = issue(sent, Directions::kBoth);
  engine_->sequence->to_compute.push_back(this);
}

/// Does this rank's part for the others, unless an exception is under way: this rank's failure then
/// ends their waits.
Layer::~Layer() {
  if (!done_ && std::uncaught_exceptions() == exceptions_) {
    try {
      wait();
    } catch (const std::exception&) {
      // Whoever cares has called wait().
    }
  }
  std::erase(engine_->sequence->to_compute, this);
}

void Layer::reserve(BufferRole role, const MessageList& messages) {
  if (messages.empty()) return;
  buffers_[static_cast<size_t>(role)] =
      engine_->sequence->spare->take(role, messages.buffer_bytes, engine_->device);
}

LayerPass Layer::pass() {
  LayerPass pass{
      .exchange = plan_->exchange, .home = home, .layer_state = layer_state_, .pass = pass_};
  for (size_t role = 0; role < buffers_.size(); ++role) {
    const at::Tensor* const memory = buffers_[role].get();
    if (memory == nullptr) continue;
    pass.memory[role] = {static_cast<std::byte*>(memory->data_ptr()), memory->nbytes()};
  }
  return pass;
}

std::unique_ptr<PendingExchange> Layer::issue(Content content, Directions directions) {
  const LayerPass layer = pass();
  if (directions != Directions::kReceives) engine_->parts.pack(layer, content);
  const uint32_t tag = (2 * call_ + (goes_home(content) ? 1 : 0)) % kExchangeTags;
  if (directions != Directions::kReceives)
    engine_->sequence->sent_bytes += plan_->exchange.sent(content).bytes;
  const char* const name = kContentNames.at(static_cast<size_t>(content));
  return engine_->parts.issue(layer, content, tag, fmt::format("{} {}", name, call_), directions);
}

/// This layer's and those that were called before it: another rank may wait for theirs.
void Layer::compute() {
  std::vector<Layer*>& waiting = engine_->sequence->to_compute;
  while (std::ranges::find(waiting, this) != waiting.end()) {
    Layer* const first = waiting.front();
    waiting.erase(waiting.begin());
    first->compute_tasks();
  }
}

void Layer::compute_tasks() {
  const PlainTensors plain;
  engine_->kernel.set_softmax_scale(std::abs(softmax_scale));
  const AttentionExchange& exchange = plan_->exchange;
  if (exchange.converts_gradients() && pass_ == Pass::kBackward)
    reserve(BufferRole::kAccumulators, exchange.homes(Content::kAccumulator));
  reserve(sent_from(result_), exchange.sent(result_));
  // Where exchanges end in order, no receive may stand before what its server waits for.
  const bool in_order = engine_->comm.ends_in_order();
  bool serves = false;
  for (KernelTasks& tasks : plan_->tasks) {
    if (tasks.reads_received && to_servers_) to_servers_->wait_received();
    engine_->parts.compute(pass(), tasks);
    if (!tasks.reads_received) continue;
    to_homes_ = issue(result_, in_order ? Directions::kBoth : Directions::kSends);
    serves = true;
  }
  if (in_order && !serves) to_homes_ = issue(result_, Directions::kReceives);
}

void Layer::wait() {
  if (done_) return;
  compute();
  const PlainTensors plain;
  const auto& arriving = engine_->comm.ends_in_order() ? to_homes_ : from_servers_;
  if (arriving) arriving->wait_received();
  engine_->parts.land(pass());
  DISTCA_CHECK(home.is_complete(pass_), "a pass of a layer lacks tasks or messages");
  for (std::unique_ptr<PendingExchange>* pending : {&to_servers_, &from_servers_, &to_homes_}) {
    if (*pending) (*pending)->wait();
    pending->reset();
  }
  MessageMemory kept = pass_ == Pass::kForward ? received_qkv() : nullptr;
  buffers_ = {};
  buffers_[static_cast<size_t>(BufferRole::kQkvIn)] = std::move(kept);
  if (pass_ == Pass::kBackward) {
    gradients = engine_->parts.take_gradients(home);
    if (softmax_scale < 0) std::get<0>(gradients).neg_();
    home = {};
  }
  done_ = true;
}

/// Laid out once; remembered for the layers that follow.
std::shared_ptr<RankPlan> CoreAttention::Engine::rank_plan(const BatchPlan& plan) {
  const auto known = std::ranges::find(plans, plan.hash(), &RankPlan::hash);
  if (known != plans.end()) {
    std::rotate(known, known + 1, plans.end());
    return plans.back();
  }
  if (plan.num_ranks() != comm.size()) {
    throw Error(ErrorKind::kPlan, "a plan for {} ranks, followed by {}", plan.num_ranks(),
                comm.size());
  }
  AttentionShape planned = plan.plan().shape;
  planned.mask = shape.mask;
  if (planned != shape) {
    throw Error(
        ErrorKind::kPlan,
        "a plan for {} heads on {} key heads of {} and {}, {} bytes a number; CoreAttention "
        "was made for {} on {} of {} and {}, {} bytes",
        planned.num_heads, planned.num_kv_heads, planned.head_dim_qk, planned.head_dim_v,
        planned.element_bytes(), shape.num_heads, shape.num_kv_heads, shape.head_dim_qk,
        shape.head_dim_v, shape.element_bytes());
  }
  auto made = std::make_shared<RankPlan>();
  made->hash = plan.hash();
  made->exchange = make_attention_exchange(PlanIndex(plan.plan()).exchange(comm.rank()),
                                           plan.plan().shape, types);
  for (const TaskSet set : made->exchange.partial_sets())
    made->tasks.push_back(kernel_tasks(made->exchange, pieces_of(made->exchange, set)));
  parts.check(made->exchange);
  if (plans.size() >= kRememberedPlans) plans.erase(plans.begin());
  plans.push_back(made);
  return made;
}

/// The caller's tensor as kernels read it. Throws Error(kUsage).
at::Tensor CoreAttention::Engine::rows(const char* name, const at::Tensor& given, int64_t tokens,
                                       int64_t heads, int64_t dim) const {
  const std::array<int64_t, 3> sizes = {tokens, heads, dim};
  const at::ScalarType type = aten_type(types.compute);
  if (!given.defined() || given.sizes() != at::IntArrayRef(sizes) || given.scalar_type() != type ||
      given.device() != device) {
    throw Error(
        ErrorKind::kUsage, "{} is {}; rank {} gives [{}] of {} on {}: tokens, heads, dim", name,
        given.defined() ? fmt::format("[{}] of {} on {}", fmt::join(given.sizes(), ", "),
                                      c10::toString(given.scalar_type()), given.device().str())
                        : "undefined",
        comm.rank(), fmt::join(sizes, ", "), c10::toString(type), device.str());
  }
  const bool strided = given.layout() == at::kStrided;
  DISTCA_THROW_IF(strided && !given.has_storage(), ErrorKind::kUsage,
                  "{} is a tensor of torch.func or of is_grads_batched: attention takes plain ones",
                  name);
  const at::Tensor plain = (strided ? given.detach() : given.to_dense()).resolve_neg();
  const bool is_row = plain.stride(2) == 1 && (heads == 1 || plain.stride(1) >= dim) &&
                      (tokens == 1 || plain.stride(0) >= dim);
  return is_row || plain.numel() == 0 ? plain : plain.contiguous();
}

/// Kernels take a positive scale: the sign of a negative one goes into Q, and so into dQ.
std::array<at::Tensor, 3> CoreAttention::Engine::qkv(int64_t tokens, double softmax_scale,
                                                     const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v) const {
  const at::Tensor queries = rows("q", q, tokens, shape.num_heads, shape.head_dim_qk);
  return {softmax_scale < 0 ? queries.neg() : queries,
          rows("k", k, tokens, shape.num_kv_heads, shape.head_dim_qk),
          rows("v", v, tokens, shape.num_kv_heads, shape.head_dim_v)};
}

std::vector<std::string> kernel_names() { return distca::kernel_names(); }

std::string compiled_kernels_folder(int64_t head_dim, std::string dtype,
                                    int64_t heads_of_a_key_head) {
  const std::optional<ScalarType> type = scalar_type(dtype);
  DISTCA_THROW_IF(!type, ErrorKind::kUsage, "dtype = {}: no type of numbers", dtype);
  return distca::compiled_kernels_folder(head_dim, *type, heads_of_a_key_head);
}

CoreAttention::CoreAttention(Communicator& comm, const Shape& shape,
                             const CoreAttentionOptions& options)
    : engine_(std::make_shared<Engine>(std::make_shared<CallSequence>(comm), shape, options)) {}
CoreAttention::CoreAttention(const CoreAttention& beside, const Shape& shape,
                             const CoreAttentionOptions& options)
    : engine_(std::make_shared<Engine>(beside.engine_->sequence, shape, options)) {}
CoreAttention::~CoreAttention() = default;

void CoreAttention::compare(const BatchPlan& plan) {
  std::array<char, 16> mine{};
  plan.hash().copy(mine.data(), mine.size());
  const auto all = all_gather(engine_->comm, mine, "comparing plans");
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto text = [](const auto& hash) { return std::string_view(hash.data(), hash.size()); };
    throw Error(ErrorKind::kPlan,
                "rank {} has plan {}, rank 0 has {}: all ranks plan the same request", rank,
                text(all[rank]), text(all[0]));
  }
}

Forward CoreAttention::forward(const BatchPlan& plan, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, double softmax_scale) {
  const PlainTensors plain;
  const Engine& e = *engine_;
  check_scale(softmax_scale);
  const double scale = softmax_scale == 0 ? e.softmax_scale : softmax_scale;
  std::shared_ptr<RankPlan> mine = engine_->rank_plan(plan);
  const int64_t tokens = mine->exchange.rows.local_tokens;
  const auto qkv = e.qkv(tokens, scale, q, k, v);
  HomeRows home = e.parts.home_of(qkv[0], qkv[1], qkv[2]);
  return Forward(std::make_shared<Layer>(engine_, std::move(mine), Pass::kForward, std::move(home),
                                         scale, nullptr));
}

Backward CoreAttention::backward(const Forward& forward, const at::Tensor& d_o) {
  const Layer& layer = *forward.layer_;
  if (layer.is_done() && !layer.home.q.defined())
    throw Error(ErrorKind::kUsage, "backward needs Q, K, V again: drop_inputs() has freed them");
  const at::Tensor& q = layer.home.q;
  return backward(forward, d_o, layer.softmax_scale < 0 ? q.neg() : q, layer.home.k, layer.home.v);
}

Backward CoreAttention::backward(const Forward& forward, const at::Tensor& d_o, const at::Tensor& q,
                                 const at::Tensor& k, const at::Tensor& v) {
  const PlainTensors plain;
  const Engine& e = *engine_;
  const Layer& layer = *forward.layer_;
  if (layer.engine() != engine_.get())
    throw Error(ErrorKind::kUsage, "backward of another CoreAttention's forward");
  if (!layer.is_done())
    throw Error(ErrorKind::kUsage, "backward needs O: wait for the forward first");
  HomeRows home = layer.home;
  const int64_t tokens = home.o.size(0);
  const auto qkv = e.qkv(tokens, layer.softmax_scale, q, k, v);
  e.parts.set_qkv(home, qkv[0], qkv[1], qkv[2]);
  e.parts.set_d_o(home, e.rows("d_o", d_o, tokens, e.shape.num_heads, e.shape.head_dim_v));
  return Backward(std::make_shared<Layer>(engine_, layer.plan(), Pass::kBackward, std::move(home),
                                          layer.softmax_scale, layer.received_qkv()));
}

int64_t CoreAttention::sent_bytes() const { return engine_->sequence->sent_bytes; }
int64_t CoreAttention::message_memory_bytes() const {
  return engine_->sequence->spare->allocated_bytes;
}

void Forward::compute() { layer_->compute(); }
at::Tensor Forward::wait() {
  layer_->wait();
  return layer_->home.o;
}
at::Tensor Forward::lse() {
  layer_->wait();
  return layer_->home.lse.squeeze(-1);
}

void Forward::drop_inputs() {
  layer_->wait();
  HomeRows& home = layer_->home;
  home.q = home.k = home.v = at::Tensor();
}

void Backward::compute() { layer_->compute(); }
std::tuple<at::Tensor, at::Tensor, at::Tensor> Backward::wait() {
  layer_->wait();
  return layer_->gradients;
}

}  // namespace distca::api
