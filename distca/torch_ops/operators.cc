// The operators of PyTorch's dispatcher (python/distca/_ops.py calls them). The three of a layer,
// dispatch, core_attention and combine, do their work below autograd. So a dispatch mode such as
// that of selective checkpointing sees the same calls in a forward and in its recomputation, and
// what is there already is neither sent nor computed again.
//
// On a CUDA device, autograd plays backward in a thread of the device. All nodes of a layer have
// their handles there, so they follow each other in this thread, in the reverse order of forward,
// which is the same on all ranks, and in the stream that their forward was given to.
//
// Errors: as api/core_attention.h, thrown to Python as RuntimeError. PyTorch calls operators from
// Python with the GIL released, so a rank that waits here does not stop other threads.

#include <ATen/ATen.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/torch_ops/handle.h"
#include "distca/torch_ops/step.h"

namespace distca::torch_ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNoLayer = -1;
// Attention that this rank computes alone and that has no backward: a recomputation computes anew.
constexpr int64_t kAlone = -2;

ScalarType scalar_type_of(at::ScalarType type) {
  for (const ScalarType ours :
       {ScalarType::kFloat64, ScalarType::kFloat32, ScalarType::kBFloat16}) {
    if (aten_type(ours) == type) return ours;
  }
  throw Error(ErrorKind::kUsage, "attention of {}: float32, bfloat16 or float64",
              c10::toString(type));
}

int64_t named_kernel(const std::string& name) {
  const std::vector<std::string> names = api::kernel_names();
  const auto found = std::ranges::find(names, name);
  DISTCA_THROW_IF(found == names.end(), ErrorKind::kUsage, "kernel = {}: one of {}", name,
                  fmt::join(names, ", "));
  return found - names.begin();
}

LayerKind kind_of(const Tensor& q, const Tensor& k, const Tensor& v, double softmax_scale,
                  int64_t window_left, int64_t linear_work, const std::string& kernel) {
  DISTCA_THROW_IF(q.dim() != 3 || k.dim() != 3 || v.dim() != 3, ErrorKind::kUsage,
                  "q, k and v of {}, {} and {} dimensions: [tokens, heads, head_dim]", q.dim(),
                  k.dim(), v.dim());
  return {.kind = {.shape = {.num_heads = q.size(1),
                             .num_kv_heads = k.size(1),
                             .head_dim = q.size(2),
                             .head_dim_v = v.size(2),
                             .dtype = scalar_type_of(q.scalar_type())},
                   .cuda_device = q.is_cuda() ? q.get_device() : -1,
                   .kernel = named_kernel(kernel)},
          .softmax_scale = softmax_scale,
          .window_left = window_left,
          .linear_work = linear_work};
}

/// The handle of a step lies on the CPU, as the step belongs to layers on any device.
Tensor handle_of(std::shared_ptr<Step> step) {
  return Handles<Step>::all().give(std::move(step), at::kCPU);
}

// The operators of a group and of a step. Most have no tensors to be dispatched by.

void open(std::string group, std::string backend, double timeout_s, double startup_timeout_s) {
  Ranks::open(group, backend, {.timeout_s = timeout_s, .startup_timeout_s = startup_timeout_s});
}

void throw_if_failed(std::string group) {
  const std::shared_ptr<Ranks> ranks = Ranks::find(group);
  const std::scoped_lock lock(ranks->mutex);
  ranks->throw_if_failed();
}

/// [4] forwards, backwards, bytes sent, plans made.
std::vector<int64_t> counts(std::string group) {
  const auto ranks = Ranks::find(group);
  const std::scoped_lock lock(ranks->mutex);
  const Counts counts = ranks->counts();
  return {counts.forwards, counts.backwards, counts.sent_bytes, counts.plans};
}

/// [4] Balance.
std::vector<double> balance(std::string group) {
  const auto ranks = Ranks::find(group);
  const std::scoped_lock lock(ranks->mutex);
  const auto& [work, sent_bytes] = ranks->balance;
  return {work.at_home, work.planned, work.mean, sent_bytes};
}

/// `numbers`: [documents + 1] where whole documents begin, and where the last one ends; or [3 *
/// pieces] document, begin and end of each piece.
RankDocuments documents_of(at::IntArrayRef numbers, bool in_pieces) {
  if (in_pieces) return {.in_pieces = true, .numbers = numbers.vec()};
  RankDocuments documents;
  for (size_t i = 1; i < numbers.size(); ++i)
    documents.numbers.push_back(numbers[i] - numbers[i - 1]);
  return documents;
}

/// Begins the forward of a model; a handle of its Step. The first numbers are those of
/// documents_of, and the arguments behind them are those of the first layer.
Tensor begin(std::string group, at::IntArrayRef documents, bool in_pieces, const Tensor& q,
             const Tensor& k, const Tensor& v, double softmax_scale, int64_t window_left,
             int64_t linear_work, std::string kernel) {
  const LayerKind first = kind_of(q, k, v, softmax_scale, window_left, linear_work, kernel);
  auto ranks = Ranks::find(group);
  LayerKinds layers;
  {
    const std::scoped_lock lock(ranks->mutex);
    layers = ranks->usual_kinds(first);
  }
  Agreement agreed = agree(*ranks, documents_of(documents, in_pieces), layers);
  return handle_of(std::make_shared<Step>(std::move(ranks), std::move(agreed)));
}

/// A handle of the kinds of layers of the latest forwards, for `begin_ahead`.
Tensor usual_layers(std::string group) {
  const auto ranks = Ranks::find(group);
  const std::scoped_lock lock(ranks->mutex);
  return Handles<LayerKinds>::all().give(std::make_shared<LayerKinds>(ranks->usual_kinds()),
                                         at::kCPU);
}

/// Begins a forward of `group` that comes later, with messages over the group `over`, which other
/// threads do not use. `layers`: what usual_layers returned.
Tensor begin_ahead(std::string group, std::string over, at::IntArrayRef documents, bool in_pieces,
                   const Tensor& layers) {
  Agreement agreed = agree(*Ranks::find(over), documents_of(documents, in_pieces),
                           *Handles<LayerKinds>::all().of(layers));
  return handle_of(std::make_shared<Step>(Ranks::find(group), std::move(agreed)));
}

/// Tells the ranks of `over` that this one's loader has ended after so many batches.
void end_ahead(std::string over, int64_t batches) { agree_on_end(*Ranks::find(over), batches); }

/// Returns 0 if a step does not have the attention of a layer, 1 if its backward is to come, and 2
/// if that has ended.
int64_t state_of(const Tensor& step, int64_t layer) {
  const auto call = Handles<Step>::all().of(step)->call(layer);
  return !call ? 0 : call->is_over() ? 2 : 1;
}

// The operators of a layer.

Tensor dispatch(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& step,
                int64_t layer, double softmax_scale, int64_t window_left, int64_t linear_work,
                std::string kernel) {
  const auto of = Handles<Step>::all().of(step);
  std::shared_ptr<Call> call;
  if (layer != kAlone && torch::autograd::get_current_graph_task_id() != -1) {  // in a backward
    if (layer != kNoLayer) call = of->call(layer);
    DISTCA_THROW_IF(
        !call, ErrorKind::kUsage,
        "attention is recomputed within backward and its forward is not there: give attention its "
        "layer, and checkpoint with use_reentrant=False");
  } else {
    call = of->start(layer, kind_of(q, k, v, softmax_scale, window_left, linear_work, kernel), q, k,
                     v);
  }
  return Handles<Call>::all().give(std::move(call), q.device());
}

Tensor core_attention(const Tensor& handle) {
  auto call = Handles<Call>::all().of(handle);
  call->compute();
  return Handles<Call>::all().give(std::move(call), handle.device());
}

Tensor combine(const Tensor& handle, const Tensor& q, const Tensor& k, const Tensor& v) {
  return Handles<Call>::all().of(handle)->wait();
}

Tensor lse(const Tensor& handle) { return Handles<Call>::all().of(handle)->lse(); }

// The operators of a layer on tensors without data.

Tensor dispatch_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& step,
                     int64_t layer, double softmax_scale, int64_t window_left, int64_t linear_work,
                     std::string kernel) {
  return q.new_empty({1}, at::TensorOptions().dtype(at::kDouble));
}
Tensor core_attention_meta(const Tensor& handle) { return at::empty_like(handle); }
Tensor combine_meta(const Tensor& handle, const Tensor& q, const Tensor& k, const Tensor& v) {
  return q.new_empty_symint({q.sym_size(0), q.sym_size(1), v.sym_size(2)});
}

// Autograd. The gradient of a handle says only that what comes before it is next.

/// Calls an operator below autograd.
template <typename Signature, typename... Args>
Tensor below(const char* name, const Args&... args) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>().call(args...);
}

struct CallHolder : torch::CustomClassHolder {
  explicit CallHolder(std::shared_ptr<Call> held) : call(std::move(held)) {}
  const std::shared_ptr<Call> call;
};

/// A node of the graph keeps the call itself: its handle may be the node's own output.
void keep(AutogradContext* node, const Tensor& handle) {
  if (handle.is_meta() || handle.unsafeGetTensorImpl()->is_python_dispatch())
    return;  // without data
  node->saved_data["call"] =
      c10::IValue::make_capsule(c10::make_intrusive<CallHolder>(Handles<Call>::all().of(handle)));
}
Call& kept(AutogradContext* node) {
  const auto found = node->saved_data.find("call");
  DISTCA_THROW_IF(found == node->saved_data.end(), ErrorKind::kUsage,
                  "backward of attention without data");
  return *static_cast<CallHolder&>(*found->second.toCapsule()).call;
}

/// A gradient that autograd may differentiate again (create_graph): it depends on `sources`, and
/// asking how is an error, as it is of PyTorch's own kernels. Such an error comes before a message:
/// in a backward through gradients, what came of the first backward comes first.
struct HasNoDerivative : torch::autograd::Function<HasNoDerivative> {
  static Tensor forward(AutogradContext* /*node*/, const Tensor& gradient,
                        at::TensorList /*sources*/) {
    return gradient.alias();
  }
  static variable_list backward(AutogradContext* /*node*/, const variable_list& /*gradients*/) {
    throw Error(ErrorKind::kUsage,
                "attention has no second derivative: its gradients, of create_graph=True, were "
                "differentiated again");
  }
};

Tensor final_gradient(const Tensor& gradient, at::TensorList sources) {
  return at::GradMode::is_enabled() ? HasNoDerivative::apply(gradient, sources) : gradient;
}

struct Dispatch : torch::autograd::Function<Dispatch> {
  static Tensor forward(AutogradContext* node, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& step, int64_t layer, double softmax_scale,
                        int64_t window_left, int64_t linear_work, std::string kernel) {
    Tensor handle = below<decltype(dispatch)>("distca::dispatch", q, k, v, step, layer,
                                              softmax_scale, window_left, linear_work, kernel);
    keep(node, handle);
    return handle;
  }
  static variable_list backward(AutogradContext* node, const variable_list& of_handle) {
    const bool last = !torch::autograd::get_current_graph_task_keep_graph();
    auto [dq, dk, dv] = kept(node).end_backward(last);
    for (Tensor* const one : {&dq, &dk, &dv}) *one = final_gradient(*one, of_handle);
    return {dq, dk, dv, {}, {}, {}, {}, {}, {}};
  }
};

struct CoreAttentionNode : torch::autograd::Function<CoreAttentionNode> {
  static Tensor forward(AutogradContext* node, const Tensor& handle) {
    Tensor next = below<decltype(core_attention)>("distca::core_attention", handle);
    keep(node, next);
    return next;
  }
  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    kept(node).compute_backward();
    return gradients;
  }
};

struct Combine : torch::autograd::Function<Combine> {
  static Tensor forward(AutogradContext* node, const Tensor& handle, const Tensor& q,
                        const Tensor& k, const Tensor& v) {
    keep(node, handle);
    node->save_for_backward({q, k, v});
    return below<decltype(combine)>("distca::combine", handle, q, k, v);
  }
  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const variable_list qkv = node->get_saved_variables();  // may recompute a part of the model
    kept(node).begin_backward(gradients[0], qkv[0], qkv[1], qkv[2]);
    const Tensor next = at::zeros({1}, qkv[0].options().dtype(at::kDouble));
    return {final_gradient(next, {gradients[0], qkv[0], qkv[1], qkv[2]}), {}, {}, {}};
  }
};

Tensor dispatch_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& step,
                         int64_t layer, double softmax_scale, int64_t window_left,
                         int64_t linear_work, std::string kernel) {
  return Dispatch::apply(q, k, v, step, layer, softmax_scale, window_left, linear_work, kernel);
}
Tensor core_attention_autograd(const Tensor& handle) { return CoreAttentionNode::apply(handle); }
Tensor combine_autograd(const Tensor& handle, const Tensor& q, const Tensor& k, const Tensor& v) {
  return Combine::apply(handle, q, k, v);
}

/// Adds the operators that take tensors of a layer.
void add_layer_operators(torch::Library& library) {
  library.impl("begin", &begin);
  library.impl("dispatch", &dispatch);
  library.impl("core_attention", &core_attention);
  library.impl("combine", &combine);
  library.impl("lse", &lse);
}

}  // namespace

TORCH_LIBRARY(distca, library) {
  library.def("open(str group, str backend, float timeout_s, float startup_timeout_s) -> ()",
              &open);
  library.def("close(str group) -> ()", &Ranks::close);
  library.def("close_all(bool failed) -> ()", &Ranks::close_all);
  library.def("kernels_folder(int head_dim, str dtype, int heads_of_a_key_head) -> str",
              &api::compiled_kernels_folder);
  library.def("counts(str group) -> int[]", &counts);
  library.def("balance(str group) -> float[]", &balance);
  library.def("throw_if_failed(str group) -> ()", &throw_if_failed);
  library.def("state_of(Tensor step, int layer) -> int");
  library.def(
      "begin(str group, int[] documents, bool in_pieces, Tensor q, Tensor k, Tensor v, float "
      "softmax_scale, int window_left, int linear_work, str kernel) -> Tensor");
  library.def("usual_layers(str group) -> Tensor", &usual_layers);
  library.def(
      "begin_ahead(str group, str over, int[] documents, bool in_pieces, Tensor layers) -> Tensor",
      &begin_ahead);
  library.def("end_ahead(str over, int batches) -> ()", &end_ahead);
  library.def(
      "dispatch(Tensor q, Tensor k, Tensor v, Tensor step, int layer, float softmax_scale, int "
      "window_left, int linear_work, str kernel) -> Tensor");
  library.def("core_attention(Tensor handle) -> Tensor");
  library.def("combine(Tensor handle, Tensor q, Tensor k, Tensor v) -> Tensor");
  library.def("lse(Tensor handle) -> Tensor");
}

TORCH_LIBRARY_IMPL(distca, CPU, library) {
  library.impl("state_of", &state_of);
  add_layer_operators(library);
}
TORCH_LIBRARY_IMPL(distca, CUDA, library) { add_layer_operators(library); }
TORCH_LIBRARY_IMPL(distca, Meta, library) {
  library.impl("dispatch", &dispatch_meta);
  library.impl("core_attention", &core_attention_meta);
  library.impl("combine", &combine_meta);
}
TORCH_LIBRARY_IMPL(distca, Autograd, library) {
  library.impl("dispatch", &dispatch_autograd);
  library.impl("core_attention", &core_attention_autograd);
  library.impl("combine", &combine_autograd);
}

}  // namespace distca::torch_ops
