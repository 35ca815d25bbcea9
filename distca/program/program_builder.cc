#include "distca/program/program_builder.h"

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/program/tensor_rows.h"

namespace distca {
namespace {

/// Communications of one layer step of one exchange: dispatch and combine of both passes, and, in
/// their midst, redispatch.
constexpr int kTagKinds = 5;
/// The runtime gives tags below this to exchanges, those above to collectives (comm/tags.h).
constexpr int64_t kTagEnd = (1 << 25) - 16;

int tag_kind(OpKind kind, Pass pass) {
  if (kind == OpKind::kRedispatch) return 2;
  return (pass == Pass::kForward ? 0 : 3) + (kind == OpKind::kCombine ? 1 : 0);
}

/// The place of a kGatherRows or kSumRows among those of its nano-batch and layer: forward pre and
/// post attention, backward post and pre, of each gather and sum.
int64_t place_in_layer(const Op& op) {
  const int64_t is_post = op.of_phase == OpKind::kPostAttention ? 1 : 0;
  const int64_t pair = op.pass == Pass::kForward ? is_post : 3 - is_post;
  return 2 * pair + (op.kind == OpKind::kSumRows ? 1 : 0);
}
constexpr int64_t kTensorOpsInLayer = 8;

/// The layers of a model by their windows.
struct WindowedLayers {
  /// Neighbours that share a window, as many as there are.
  struct Run {
    Range layers;
    int window = 0;
    int first_step = 0;  // layers before them that have this window
  };
  std::vector<Run> runs;
  std::vector<int> num_layers;  // [window]
};

WindowedLayers windowed_layers(const ProgramRequest& request) {
  const std::vector<int>& windows = request.window_of_layer;
  const Range all{0, request.model.num_layers};
  if (windows.empty())
    return {.runs = {{.layers = all}}, .num_layers = {static_cast<int>(all.size())}};
  DISTCA_CHECK_EQ(static_cast<int64_t>(windows.size()), all.size());
  WindowedLayers result;
  result.num_layers.resize(std::ranges::max(windows) + 1, 0);
  for (int64_t layer = 0; layer < all.end; ++layer) {
    int& before = result.num_layers[windows[layer]];
    if (layer == 0 || windows[layer] != windows[layer - 1])
      result.runs.push_back({{layer, layer}, windows[layer], before});
    result.runs.back().layers.end = layer + 1;
    ++before;
  }
  return result;
}

/// Without a pipeline: an exchange for each nano-batch and window. A visit of forward, and one of
/// backward, is a run of neighbouring layers that share a window.
StagePart one_stage(const ProgramRequest& request, int slots) {
  const WindowedLayers layers = windowed_layers(request);
  const size_t windows = layers.num_layers.size(), parts = request.nano_batches.size();
  DISTCA_CHECK(parts % windows == 0, "{} parts of nano-batches for {} windows", parts, windows);
  StagePart part{.stage = {.tensor = request.tensor},
                 .num_nano_batches = static_cast<int>(parts / windows)};
  if (request.holds_weights) part.stage.layers = {0, request.model.num_layers};
  part.slots.resize(slots);
  for (size_t i = 0; i < parts; ++i)
    part.exchanges.push_back({request.nano_batches[i].exchange, layers.num_layers[i % windows]});
  for (int nano = 0; nano < part.num_nano_batches; ++nano) {
    std::vector<Visit>& visits = part.slots[nano % slots];
    const auto add = [&](const WindowedLayers::Run& run, Pass pass) {
      Visit visit{.pass = pass, .nano_batch = nano, .layers = run.layers};
      visit.exchange = nano * static_cast<int>(windows) + run.window;
      visit.redispatched =
          pass == Pass::kBackward && request.nano_batches[visit.exchange].redispatched;
      visit.first_step = run.first_step;
      visits.push_back(visit);
    };
    for (const WindowedLayers::Run& run : layers.runs) add(run, Pass::kForward);
    if (request.kind == ProgramRequest::Kind::kEvaluate) continue;
    for (size_t i = layers.runs.size(); i-- > 0;) add(layers.runs[i], Pass::kBackward);
  }
  return part;
}

void insert_once(std::vector<int32_t>& ascending, int32_t value) {
  const auto place = std::lower_bound(ascending.begin(), ascending.end(), value);
  if (place == ascending.end() || *place != value) ascending.insert(place, value);
}

}  // namespace

ProgramBuilder::ProgramBuilder(const ProgramRequest& request, int slots, Waiting waiting)
    : request_(request),
      slots_(slots),
      waiting_(waiting),
      part_(request.stage ? *request.stage : one_stage(request, slots)) {
  DISTCA_CHECK(part_.slots.size() <= static_cast<size_t>(slots) && !part_.slots.empty(),
               "visits of {} slots, {} are played in turn", part_.slots.size(), slots);
  DISTCA_CHECK(part_.stage.count == 1 || part_.stage.layers.empty() ||
                   part_.p2p_messages.size() == static_cast<size_t>(part_.num_nano_batches),
               "{} nano-batches, of which {} have p2p messages", part_.num_nano_batches,
               part_.p2p_messages.size());
  if (request.stage) slots_ = static_cast<int>(part_.slots.size());
  part_.slots.resize(slots);
  free_activations_.resize(slots);
  add_exchanges();
  for (int slot = 0; slot < slots; ++slot) {
    for (const Visit& visit : part_.slots[slot]) add_visit(visit, slot);
  }
  program_.stage = part_.stage;
  program_.num_nano_batches = part_.num_nano_batches;
  program_.p2p_messages = part_.p2p_messages;
  program_.server = request.server;
  const size_t groups = request.gradients ? request.gradients->groups.size() : 0;
  DISTCA_CHECK_LT(last_p2p_tag() + 2 * static_cast<int64_t>(groups) * kMostBuckets,
                  first_tensor_tag());
  count_phases();
}

void ProgramBuilder::add_exchanges() {
  int steps = 0;
  for (const StageExchange& exchange : part_.exchanges) {
    DISTCA_CHECK(exchange.part != nullptr, "a nano-batch without its exchange");
    exchanges_.push_back({.part = exchange.part.get(),
                          .partial_sets = exchange.part->partial_sets(),
                          .first_step = steps});
    steps += exchange.layer_steps;
    program_.exchanges.push_back(exchange.part);
  }
  program_.layer_steps.assign(exchanges_.size(), 0);
  if (is_divided() && request_.holds_weights) program_.tensor_rows.resize(part_.num_nano_batches);
  nanos_.resize(part_.num_nano_batches);
  for (Nano& nano : nanos_) {
    nano.forward_pre_attention.assign(part_.stage.layers.size(), -1);
    nano.backward_pre_attention.assign(part_.stage.layers.size(), -1);
  }
}

void ProgramBuilder::add_visit(const Visit& visit, int slot) {
  if (visit.nano_batch >= 0) nanos_[visit.nano_batch].slot = slot;
  if (visit.exchange < 0) return;
  Exchange& exchange = exchange_of(visit);
  exchange.slot = slot;
  exchange.is_beside = visit.is_beside;
  if (is_divided() && plays_phases(visit)) {
    program_.tensor_rows[visit.nano_batch] =
        make_tensor_rows(part_.stage.tensor, exchange.part->rows.local_tokens,
                         request_.model.hidden_size * element_bytes(exchange.part->types.compute));
  }
  const int steps = layer_steps(visit);
  int& most = program_.layer_steps[visit.exchange];
  most = std::max(most, visit.first_step + steps);
  if (visit.pass == Pass::kForward) return;
  messages_of_backward_ += 2 * steps;
  if (visit.redispatched) return;
  exchange.kept = true;
  DISTCA_CHECK(part_.stage.count == 1 || exchange.part->homes(Content::kQkv).empty(),
               "exchange {}: stages of a pipeline keep no keys", visit.exchange);
}

std::span<const Visit> ProgramBuilder::beside(int slot, size_t first) const {
  const std::vector<Visit>& all = visits(slot);
  size_t end = std::min(first + 1, all.size());
  while (end < all.size() && all[end].is_beside) ++end;
  return std::span(all).subspan(std::min(first, all.size()), end - std::min(first, all.size()));
}

int ProgramBuilder::layer_steps(const Visit& visit) const {
  if (visit.exchange < 0) return 0;
  return visit.nano_batch >= 0 ? static_cast<int>(visit.layers.size())
                               : part_.exchanges[visit.exchange].layer_steps;
}

int ProgramBuilder::layer_step(const Visit& visit, int turn) const {
  return visit.pass == Pass::kForward ? turn : layer_steps(visit) - 1 - turn;
}

const std::vector<TaskSet>& ProgramBuilder::task_sets(const Visit& visit, bool partial) const {
  static const std::vector<TaskSet> whole{TaskSet::kAll};
  return partial ? exchanges_[visit.exchange].partial_sets : whole;
}

Op ProgramBuilder::make_op(OpKind kind, Pass pass, int layer, int nano_batch) const {
  Op op;
  op.kind = kind;
  op.pass = pass;
  op.stream = communicates(kind) ? Stream::kComm : Stream::kCompute;
  op.layer = layer;
  op.micro_batch = nano_batch < 0 ? -1 : nano_batch / slots_;
  op.nano_batch = nano_batch;
  return op;
}

Op ProgramBuilder::make_phase(OpKind kind, const Visit& visit, int turn) const {
  const int layer = turn < 0 || visit.nano_batch < 0
                        ? -1
                        : static_cast<int>(visit.layers.begin) + layer_step(visit, turn);
  Op op = make_op(kind, visit.pass, layer, visit.nano_batch);
  op.tick = visit.tick;
  return op;
}

Op ProgramBuilder::make_of_exchange(OpKind kind, const Visit& visit, int turn) const {
  Op op = make_phase(kind, visit, turn);
  op.exchange = visit.exchange;
  op.layer_step = visit.first_step + layer_step(visit, turn);
  return op;
}

/// The first is 1. Those of p2p follow, then those of gradients.
uint32_t ProgramBuilder::last_attention_tag() const {
  const int64_t steps =
      exchanges_.empty() ? 0 : exchanges_.back().first_step + part_.exchanges.back().layer_steps;
  return static_cast<uint32_t>(steps * kTagKinds);
}
/// Each nano-batch goes once in each pass from a virtual stage to its neighbour.
uint32_t ProgramBuilder::last_p2p_tag() const {
  return last_attention_tag() +
         2 * static_cast<uint32_t>(part_.num_nano_batches * num_boundaries());
}

/// They lie above all others, because only the ranks of a server, which have as many layers, must
/// have the same ones.
int64_t ProgramBuilder::first_tensor_tag() const {
  return is_divided() ? kTagEnd - part_.num_nano_batches * tensor_ops_in_nano_batch() : kTagEnd;
}
/// With two of the embedding.
int64_t ProgramBuilder::tensor_ops_in_nano_batch() const {
  return 2 + part_.stage.layers.size() * kTensorOpsInLayer;
}

Op ProgramBuilder::make_of_tensor(OpKind kind, OpKind of_phase, const Visit& visit,
                                  int turn) const {
  Op op = make_phase(kind, visit, turn);
  op.of_phase = of_phase;
  const int64_t place =
      op.layer < 0
          ? static_cast<int64_t>(op.pass)
          : 2 + (op.layer - part_.stage.layers.begin) * kTensorOpsInLayer + place_in_layer(op);
  op.tag = static_cast<uint32_t>(first_tensor_tag() + op.nano_batch * tensor_ops_in_nano_batch() +
                                 place);
  return op;
}

Op ProgramBuilder::make_communication(OpKind kind, const Visit& visit, int turn) const {
  Op op = make_of_exchange(kind, visit, turn);
  const int64_t steps_before = exchanges_[visit.exchange].first_step + op.layer_step;
  op.tag = 1 + static_cast<uint32_t>(steps_before * kTagKinds + tag_kind(kind, visit.pass));
  return op;
}

int32_t ProgramBuilder::new_buffer(BufferRole role) {
  program_.buffers.push_back({.role = role, .bytes = 0});
  uses_.emplace_back();
  return static_cast<int32_t>(program_.buffers.size()) - 1;
}

void ProgramBuilder::enlarge(int32_t buffer, int64_t bytes) {
  int64_t& size = program_.buffers[buffer].bytes;
  size = std::max(size, bytes);
}

/// Returns a buffer of at least so many bytes, or -1 if there are none. Visits to the exchanges of
/// a slot share it.
int32_t ProgramBuilder::buffer(BufferRole role, const Exchange& exchange, int64_t bytes,
                               int layer) {
  if (bytes == 0) return -1;
  // Accumulators are free as soon as they have been packed: one buffer for all slots.
  const int slot = role == BufferRole::kAccumulators ? 0 : exchange.slot;
  const auto [place, is_new] = buffers_.try_emplace({role, slot, exchange.is_beside, layer}, -1);
  if (is_new) place->second = new_buffer(role);
  enlarge(place->second, bytes);
  return place->second;
}

/// Takes one of the buffers that are free, or a new one.
int32_t ProgramBuilder::take_free(std::vector<int32_t>& free, BufferRole role, int64_t bytes) {
  if (free.empty()) free.push_back(new_buffer(role));
  const int32_t taken = free.back();
  free.pop_back();
  enlarge(taken, bytes);
  return taken;
}

/// Returns the buffer of received Q, K, V. Kept ones have a buffer for each layer, not for each
/// layer step, since the exchanges of several windows share a slot.
int32_t ProgramBuilder::qkv_in(const Visit& visit, int turn) {
  const Exchange& exchange = exchange_of(visit);
  const int layer =
      exchange.kept ? static_cast<int>(visit.layers.begin) + layer_step(visit, turn) : 0;
  return buffer(BufferRole::kQkvIn, exchange, exchange.part->homes(Content::kQkv).buffer_bytes,
                layer);
}

/// The buffer in which core attention sums gradients for other ranks: the one that they are sent
/// from, unless they travel in another type.
int32_t ProgramBuilder::sums_of_gradients(const Exchange& exchange) {
  const bool converts = exchange.part->converts_gradients();
  return buffer(
      converts ? BufferRole::kAccumulators : BufferRole::kGradientOut, exchange,
      exchange.part->homes(converts ? Content::kAccumulator : Content::kGradient).buffer_bytes);
}

void ProgramBuilder::wait_for(Op& op, int32_t other) const {
  if (other >= 0) insert_once(op.wait_for, other);
}

/// Adds the waits for buffers: those that are read must have been written, and those that are
/// written must neither be read nor travel any more.
void ProgramBuilder::wait_for_buffers(Op& op) {
  const auto self = static_cast<int32_t>(program_.ops.size());
  const bool computes = op.stream == Stream::kCompute;
  for (int32_t buffer : op.reads) {
    wait_for(op, uses_[buffer].writer);
    // An exchange reads while it packs: before anything that comes after it in the list.
    if (computes) uses_[buffer].readers.push_back(self);
  }
  const auto overwrite = [&](int32_t buffer, bool is_writer) {
    Use& use = uses_[buffer];
    // Readers have waited for the writer.
    if (use.readers.empty()) wait_for(op, use.writer);
    for (int32_t reader : use.readers) wait_for(op, reader);
    if (use.sender >= 0) insert_once(op.wait_sends, use.sender);
    // It reads its own rows of what it sends, too, when it has landed.
    if (use.sender >= 0 && program_.ops[use.sender].kind == OpKind::kSumRows)
      wait_for(op, use.sender);
    use = {.writer = is_writer ? self : -1, .sender = -1, .readers = {}};
  };
  for (int32_t buffer : op.writes) overwrite(buffer, computes);
  if (op.in >= 0) overwrite(op.in, true);
  if (op.out >= 0) {
    if (op.out != op.in) wait_for(op, uses_[op.out].writer);
    uses_[op.out].sender = self;
  }
}

int32_t ProgramBuilder::append(Op op) {
  wait_for_buffers(op);
  const auto self = static_cast<int32_t>(program_.ops.size());
  if (waiting_ == Waiting::kForThePrevious) {
    op.wait_for.clear();
    op.wait_sends.clear();
    if (self > 0) {
      op.wait_for.push_back(self - 1);
      if (program_.ops.back().stream == Stream::kComm) op.wait_sends.push_back(self - 1);
    }
  }
  program_.ops.push_back(std::move(op));
  return self;
}

}  // namespace distca
