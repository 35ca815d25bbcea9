#include "distca/train/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ranges>
#include <utility>

#include "distca/base/error.h"
#include "distca/comm/host_read.h"
#include "distca/comm/tags.h"
#include "distca/model/llama.h"

namespace distca {

namespace {

/// Elements of a weight that are updated together.
struct Piece {
  size_t weight;
  Range elements;    // within the weight, in row-major order
  int64_t in_flat;   // index of the first one in the flat gradients
  int64_t in_state;  // index of the first one in this rank's state
};

/// Pieces that AdamW treats alike, with all that it reads and writes of them.
struct Group {
  double weight_decay = 0;
  std::vector<at::Tensor> parameters, gradients, exp_avg, exp_avg_sq, updates;
};

struct Bucket {
  std::vector<Piece> pieces;
  at::Tensor gradients;         // the elements that this rank updates, in one piece
  std::array<Group, 2> groups;  // pieces with weight decay, and those without
};

}  // namespace

struct Optimizer::State {
  Weights weights;
  FlatLayout layout;
  Config::Optimizer options;
  std::shared_ptr<const GradientExchange> exchange;
  at::Tensor gradients;            // [elements of the layout]
  at::Tensor exp_avg, exp_avg_sq;  // [elements that this rank updates]
  at::Tensor main_params;          // likewise; undefined where the parameters are the main params
  at::Tensor updates;              // number of updates so far, as a scalar that AdamW reads
  std::vector<Bucket> buckets;
  double lr = 0, scale = 1;

  bool keeps_main_params() const { return main_params.defined(); }
  const at::Tensor& kept(StatePart part) const {
    return part == StatePart::kWeight   ? main_params
           : part == StatePart::kExpAvg ? exp_avg
                                        : exp_avg_sq;
  }
  /// The pieces of all buckets, in their order.
  auto pieces() const {
    return buckets | std::views::transform(&Bucket::pieces) | std::views::join;
  }
  at::Tensor parameter_part(size_t weight, const Range& elements) const {
    return weights.parameters[weight].detach().view({-1}).narrow(0, elements.begin,
                                                                 elements.size());
  }
  at::Tensor state_part(const at::Tensor& state, const Piece& piece) const {
    return state.narrow(0, piece.in_state, piece.elements.size());
  }
  void cut_into_pieces();
  void add_to_group(Bucket& bucket, const Piece& piece);
  /// Returns the piece that has these elements of a weight, which this rank must hold (CHECK).
  const Piece& piece_of(size_t weight, const Range& elements) const;
};

/// Cuts what this rank updates of every bucket into pieces, each of one weight, and allocates the
/// moments. State of all weights has the layout of the gradients; state of slices lies end to end.
void Optimizer::State::cut_into_pieces() {
  const bool is_whole = !exchange->distributed_optimizer;
  int64_t in_state = 0;
  for (const GradientBucket& bucket : exchange->buckets) {
    const Range range = is_whole ? bucket.elements : bucket.own;
    Bucket& mine = buckets.emplace_back();
    mine.gradients = gradients.narrow(0, range.begin, range.size());
    for (size_t i = 0; i < weights.table.size(); ++i) {
      const int64_t begin = layout.begins[i];
      const Range held = intersect(range, {begin, begin + weights.table[i].numel()});
      if (held.empty()) continue;
      mine.pieces.push_back(
          {.weight = i,
           .elements = {held.begin - begin, held.end - begin},
           .in_flat = held.begin,
           .in_state = is_whole ? held.begin : in_state + held.begin - range.begin});
    }
    in_state += range.size();
  }
  const at::TensorOptions plain = gradients.options();
  exp_avg = at::zeros({in_state}, plain);
  exp_avg_sq = at::zeros({in_state}, plain);
}

void Optimizer::State::add_to_group(Bucket& bucket, const Piece& piece) {
  Group& group = bucket.groups[weights.table[piece.weight].decays() ? 0 : 1];
  group.parameters.push_back(keeps_main_params() ? state_part(main_params, piece)
                                                 : parameter_part(piece.weight, piece.elements));
  group.gradients.push_back(gradients.narrow(0, piece.in_flat, piece.elements.size()));
  group.exp_avg.push_back(state_part(exp_avg, piece));
  group.exp_avg_sq.push_back(state_part(exp_avg_sq, piece));
  group.updates.push_back(updates);
}

const Piece& Optimizer::State::piece_of(size_t weight, const Range& elements) const {
  for (const Piece& piece : pieces()) {
    if (piece.weight == weight && piece.elements.contains(elements)) return piece;
  }
  DISTCA_CHECK(false, "this rank does not hold elements {} to {} of {}", elements.begin,
               elements.end, weights.table[weight].name);
}

Optimizer::Optimizer(Weights weights, const Config::Optimizer& options,
                     std::shared_ptr<const GradientExchange> gradients)
    : state_(std::make_unique<State>()) {
  DISTCA_CHECK_EQ(weights.table.size(), weights.parameters.size());
  State& s = *state_;
  s.weights = std::move(weights);
  s.layout = flat_layout(s.weights.table);
  s.options = options;
  s.exchange = std::move(gradients);
  const std::vector<at::Tensor>& parameters = s.weights.parameters;
  const auto is_rounded = [](const at::Tensor& p) { return p.scalar_type() == at::kBFloat16; };
  const at::ScalarType type = parameters[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  s.gradients =
      at::zeros({s.layout.elements}, parameters[0].options().dtype(type).requires_grad(false));
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor parameter = parameters[i];
    parameter.mutable_grad() =
        s.gradients.narrow(0, s.layout.begins[i], parameter.numel()).view(parameter.sizes());
  }
  s.updates = at::zeros({}, s.gradients.options().dtype(at::kFloat));
  s.cut_into_pieces();
  DISTCA_CHECK_EQ(s.exchange->buckets.front().elements.end, s.layout.elements);
  if (std::ranges::any_of(parameters, is_rounded)) {
    DISTCA_CHECK(s.exchange->distributed_optimizer, "main params of whole weights have no layout");
    s.main_params = at::zeros_like(s.exp_avg);
    for (size_t i = 0; i < parameters.size(); ++i)
      load(StatePart::kWeight, i, s.weights.initial(s.weights.table[i]));
  }
  for (Bucket& bucket : s.buckets) {
    bucket.groups[0].weight_decay = options.weight_decay;
    for (const Piece& piece : bucket.pieces) s.add_to_group(bucket, piece);
  }
}

Optimizer::Optimizer(const Llama& model, uint64_t seed, const Config::Optimizer& options,
                     std::shared_ptr<const GradientExchange> gradients)
    : Optimizer({.table = model.weights(),
                 .parameters = model.parameters(),
                 .storage = model.storage(),
                 .initial = [seed](const Weight& weight) { return initial_weight(weight, seed); }},
                options, std::move(gradients)) {}

Optimizer::~Optimizer() = default;

const std::shared_ptr<const GradientExchange>& Optimizer::exchange() const {
  return state_->exchange;
}
const at::Tensor& Optimizer::gradients() const { return state_->gradients; }
const at::Tensor& Optimizer::storage() const { return state_->weights.storage; }
void Optimizer::zero_gradients() { state_->gradients.zero_(); }

void Optimizer::begin_update(double lr, double scale) {
  State& s = *state_;
  for (size_t i = 0; i < s.weights.parameters.size(); ++i) {
    DISTCA_CHECK(s.weights.parameters[i].grad().is_alias_of(s.gradients),
                 "the gradient of {} has left the flat buffer", s.weights.table[i].name);
  }
  s.lr = lr;
  s.scale = scale;
  s.updates.add_(1);
}

void Optimizer::update(size_t index) {
  const State& s = *state_;
  const Bucket& bucket = s.buckets.at(index);
  if (s.scale != 1) bucket.gradients.mul_(s.scale);
  for (const Group& group : bucket.groups) {
    if (group.parameters.empty()) continue;
    at::_fused_adamw_(group.parameters, group.gradients, group.exp_avg, group.exp_avg_sq,
                      /*max_exp_avg_sqs=*/{}, group.updates, s.lr, s.options.beta1, s.options.beta2,
                      group.weight_decay, s.options.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
  if (!s.keeps_main_params()) return;
  for (const Piece& piece : bucket.pieces)
    s.parameter_part(piece.weight, piece.elements).copy_(s.state_part(s.main_params, piece));
}

int64_t Optimizer::updates() const { return std::llround(host_number(state_->updates)); }
void Optimizer::set_updates(int64_t updates) { state_->updates.fill_(updates); }

at::Tensor Optimizer::state(StatePart part, size_t weight, const Range& elements) const {
  const State& s = *state_;
  if (part == StatePart::kWeight && !s.keeps_main_params())
    return s.parameter_part(weight, elements);
  if (!s.exchange->distributed_optimizer)
    return s.kept(part).narrow(0, s.layout.begins[weight] + elements.begin, elements.size());
  const Piece& piece = s.piece_of(weight, elements);
  return s.kept(part).narrow(0, piece.in_state + elements.begin - piece.elements.begin,
                             elements.size());
}

void Optimizer::load(StatePart part, size_t weight, const at::Tensor& held) {
  State& s = *state_;
  const c10::NoGradGuard no_grad;
  if (part == StatePart::kWeight) s.weights.parameters[weight].detach().copy_(held);
  if (part == StatePart::kWeight && !s.keeps_main_params()) return;
  const at::Tensor flat = held.reshape({-1});
  for (const Piece& piece : s.pieces()) {
    if (piece.weight != weight) continue;
    s.state_part(s.kept(part), piece)
        .copy_(flat.narrow(0, piece.elements.begin, piece.elements.size()));
  }
}

std::vector<Range> Optimizer::updated_elements(size_t weight) const {
  std::vector<Range> elements;
  for (const Piece& piece : state_->pieces()) {
    if (piece.weight == weight) elements.push_back(piece.elements);
  }
  return elements;
}

int64_t Optimizer::state_bytes() const {
  const State& s = *state_;
  return static_cast<int64_t>(s.exp_avg.nbytes() + s.exp_avg_sq.nbytes() +
                              (s.keeps_main_params() ? s.main_params.nbytes() : 0));
}

void Optimizer::gather_weights(Communicator& workers) {
  const State& s = *state_;
  if (!s.exchange->distributed_optimizer) return;
  auto* const base = static_cast<std::byte*>(s.weights.storage.data_ptr());
  const auto messages_of = [&](const MessageList& list) {
    std::vector<Message> messages;
    for (const PeerMessage& m : list.messages)
      messages.push_back(
          {.peer = m.peer, .tag = kGatherToTag, .data = base + m.offset, .bytes = m.bytes});
    return messages;
  };
  for (const GradientBucket& bucket : s.exchange->buckets) {
    const std::vector<Message> sends = messages_of(bucket.gather_sends);
    const std::vector<Message> receives = messages_of(bucket.gather_receives);
    if (!sends.empty() || !receives.empty())
      workers.exchange(sends, receives, "gathering the weights")->wait();
  }
}

std::vector<at::Tensor> Optimizer::gather_main_params(Communicator& workers) {
  State& s = *state_;
  const int mine = workers.rank(), first = s.exchange->groups.front().front();
  for (const Piece& piece : s.pieces()) {
    s.gradients.narrow(0, piece.in_flat, piece.elements.size())
        .copy_(state(StatePart::kWeight, piece.weight, piece.elements));
  }
  for (const GradientBucket& bucket : s.exchange->buckets) {
    if (!s.exchange->distributed_optimizer) break;  // all replicas have all of it
    const auto base =
        static_cast<std::byte*>(s.gradients.narrow(0, bucket.elements.begin, 1).data_ptr());
    const auto bytes = static_cast<int64_t>(s.gradients.element_size());
    const int root = s.exchange->groups[bucket.group].front();
    std::vector<Message> sends, receives;
    if (mine != root && !bucket.own.empty()) {
      sends.push_back({.peer = root,
                       .tag = kGatherToTag,
                       .data = base + (bucket.own.begin - bucket.elements.begin) * bytes,
                       .bytes = bucket.own.size() * bytes});
    }
    // A peer's slice lies where the gradients lie that the root sends to this peer.
    for (const PeerMessage& message : bucket.reduce_sends.messages) {
      if (mine != root) break;
      receives.push_back({.peer = message.peer,
                          .tag = kGatherToTag,
                          .data = base + message.offset,
                          .bytes = message.bytes});
    }
    if (!sends.empty() || !receives.empty())
      workers.exchange(sends, receives, "gathering the trained weights")->wait();
  }
  if (mine != first) return {};
  std::vector<at::Tensor> main_params;
  for (const at::Tensor& parameter : s.weights.parameters) main_params.push_back(parameter.grad());
  return main_params;
}

}  // namespace distca
