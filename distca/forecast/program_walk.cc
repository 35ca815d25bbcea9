#include "distca/forecast/program_walk.h"

#include "distca/forecast/step_program.h"

namespace distca {

ProgramWalk::ProgramWalk(const Config& config, const Program& program, int64_t multiprocessors)
    : program_(program),
      model_(config.model.divided(program.stage.tensor.size)),
      row_(model_),
      loss_rows_(static_cast<double>(step_options(config).loss_rows(config.model))),
      of_attention_(attention_memory(config, program, multiprocessors)),
      recompute_(config.train.recompute),
      chunk_rows_(static_cast<double>(step_options(config).chunk_rows)),
      landed_(program.ops.size()) {
  constexpr double kIdBytes = 3 * 8;  // a token, its target and its position
  for (const Op& op : program.ops) {
    if (op.nano_batch < 0) continue;
    if (static_cast<size_t>(op.nano_batch) >= nanos_.size()) nanos_.resize(op.nano_batch + 1);
    Nano& nano = nanos_[op.nano_batch];
    if (op.kind == OpKind::kCoreAttention) {
      const int64_t tokens = program.exchanges[op.exchange]->rows.local_tokens;
      nano.tokens = static_cast<double>(tokens);
      nano.own = static_cast<double>(program.stage.tensor.part(tokens).size());
      nano.id_bytes = nano.tokens * kIdBytes;
    }
    if (op.kind == OpKind::kRedispatch) nano.keys_travel_again = true;
  }
}

void ProgramWalk::stand(const MemoryParts& standing) {
  ledger_.begin(nullptr);
  for (const MemoryPart part : {kWeights, kGradients, kCopies, kState, kCheckpoint, kBuffers})
    ledger_.take(part, standing.of(part));
}

void ProgramWalk::play_phases() {
  for (const Nano& nano : nanos_) ledger_.take(kActivations, nano.id_bytes);
  for (const Op& op : program_.ops) {
    for (const int32_t dep : op.wait_for) land(dep);
    // Gradients are added up and weights updated where they are.
    if (is_of_weights(op.kind)) continue;
    const bool moves_rows = op.kind == OpKind::kP2p || is_of_tensor(op.kind);
    if (op.stream == Stream::kComm && !moves_rows) continue;
    ledger_.begin(&op);
    if (op.kind == OpKind::kCoreAttention) {
      core_attention(op);
    } else {
      play(op, nanos_[op.nano_batch]);
    }
  }
}

void ProgramWalk::play_p2p(const Op& op, Nano& nano) {
  if (op.is_receive) return;  // until it is landed
  if (op.pass == Pass::kBackward) return take_gradient(nano);
  ledger_.give(kActivations, nano.own * row_.hidden);
}

void ProgramWalk::land(int32_t index) {
  const Op& op = program_.ops[index];
  const bool brings_rows =
      op.kind == OpKind::kSumRows || (op.kind == OpKind::kP2p && op.is_receive);
  if (!brings_rows || landed_[index]) return;
  landed_[index] = true;
  ledger_.begin(&op, /*lands=*/true);
  Nano& nano = nanos_[op.nano_batch];
  if (op.kind == OpKind::kSumRows) return land_sum(op, nano);
  if (op.pass == Pass::kForward) return begin(nano);
  ledger_.take(kActivations, nano.own * row_.hidden);
}

double ProgramWalk::norm_weight_gradients(double rows) const {
  constexpr double kBlockElements = 1 << 15;
  const auto hidden = static_cast<double>(model_.hidden_size);
  return rows / std::max(1.0, kBlockElements / hidden) * hidden * row_.wide;
}

std::vector<AttentionMemory> ProgramWalk::attention_memory(const Config& config,
                                                           const Program& program,
                                                           int64_t multiprocessors) {
  std::vector<AttentionMemory> memory;
  if (!config.on_cuda() || config.train.steps == 0) return memory;
  const KernelRequest request = kernel_request(config);
  const auto is_flash4 = [](KernelChoice choice) { return choice == KernelChoice::kFa4; };
  const auto& [forward, backward] = request.measured;
  const bool for_some =
      request.choice == KernelChoice::kAuto &&
      (std::ranges::any_of(forward, is_flash4) || std::ranges::any_of(backward, is_flash4));
  for (const auto& exchange : program.exchanges) {
    memory.push_back(cuda_attention_memory(*exchange, request.shape, request.type,
                                           {.multiprocessors = multiprocessors,
                                            .deterministic = config.train.deterministic,
                                            .flash4 = is_flash4(request.choice),
                                            .flash4_for_some = for_some}));
  }
  return memory;
}

void ProgramWalk::projections_of(double rows, MemoryPart part) {
  ledger_.take(part, rows * row_.qkv());
  if (row_.normed > 0) return ledger_.take(part, rows * row_.normed);
  ledger_.pass(kPhase, rows * (row_.q + row_.k));
}

/// O and LSE of tasks with part of the keys, which a task's first piece takes. Who only serves has
/// those of all parts at the most.
double ProgramWalk::partial_bytes(const Op& op) const {
  const AttentionExchange& exchange = *program_.exchanges[op.exchange];
  int64_t rows = 0;
  const auto add = [&](int32_t i) {
    const ServerTask& task = exchange.rows.tasks[i];
    if (task.partial) rows += task.q.tokens;
  };
  if (const AttentionPart* const part = program_.part_of(op); part != nullptr && !only_serves(op)) {
    for (const TaskPiece& piece : part->pieces) {
      if (piece.queries.begin == 0) add(piece.task);
    }
  } else {
    std::ranges::for_each(exchange.tasks_of(op.tasks), add);
  }
  return static_cast<double>(rows) * (row_.q / row_.type * row_.wide + row_.head);
}

/// Merging the parts of received rows, for which this rank has several tasks: O of a part,
/// weighted, and their sum.
double ProgramWalk::merge_bytes(const Op& op) const {
  int64_t most = 0;
  for (const RowMerge& rows : program_.exchanges[op.exchange]->rows.merges) {
    if (rows.buffer != 0 && rows.parts.size() > 1) most = std::max(most, rows.tokens);
  }
  return 2 * static_cast<double>(most) * row_.q / row_.type * row_.wide;
}

/// Operators of a part take no more than those of all tasks, which is what is counted.
void ProgramWalk::core_attention(const Op& op) {
  const bool is_forward = op.pass == Pass::kForward;
  const auto of_kernel = static_cast<double>(
      of_attention_.empty() ? 0
                            : of_attention_[op.exchange][static_cast<size_t>(op.tasks)]
                                           [static_cast<size_t>(op.pass)]);
  const double operators = std::max(of_kernel, is_forward ? merge_bytes(op) : 0);
  const double partials = is_forward ? partial_bytes(op) : 0;
  if (only_serves(op)) return ledger_.pass(kPhase, partials + operators);
  Nano& nano = nanos_[op.nano_batch];
  ledger_.take(kPhase, partials);
  nano.partials += partials;
  if (op.pass == Pass::kBackward && !nano.has_sums) {
    nano.has_sums = true;
    ledger_.take(kActivations, nano.tokens * sums());
  }
  ledger_.pass(kPhase, operators);
}

void ProgramWalk::set_d_o(const Nano& nano) {
  const double wide = nano.tokens * row_.q / row_.type * row_.wide;
  ledger_.pass(kPhase, row_.converts() ? 3 * wide : wide);
  ledger_.take(kActivations, nano.tokens * row_.head);
}

void ProgramWalk::take_gradients(Nano& nano, bool leaves) {
  nano.has_sums = false;
  // Phases take the sums in their own type: in new tensors if the sums have another type.
  const double gradients = nano.tokens * row_.qkv();
  if (row_.converts()) ledger_.take(kPhase, gradients);
  ledger_.give(kActivations, nano.tokens * (sums() + (leaves ? 1 : 2) * row_.q + 2 * row_.head));
  if (!row_.converts()) ledger_.take(kPhase, gradients);
  ledger_.give(kActivations, nano.tokens * row_.qkv());
}

void ProgramWalk::inner_backward(double rows, bool keeps, MemoryPart part) {
  // The gradient by gate takes the place of the product.
  if (!keeps) ledger_.take(kPhase, rows * row_.inner);
  add_gradient(mlp_matrix());
  ledger_.take(kPhase, rows * row_.inner);
  ledger_.give(part, rows * ((keeps ? 3 : 2) * row_.inner));
  if (keeps) ledger_.take(kPhase, rows * row_.inner);
}

void ProgramWalk::inner_leave(double rows, bool keeps, MemoryPart part) {
  // The product, or the product computed again, and the gradients by gate and by up.
  const double inner = rows * row_.inner;
  if (!keeps) ledger_.take(kActivations, inner);
  ledger_.take(kActivations, 2 * inner);
  ledger_.give(part, 2 * inner);
  if (!keeps || part == kActivations) return;
  ledger_.give(part, inner);  // that of a chunk stays with what is left
  ledger_.take(kActivations, inner);
}

void ProgramWalk::weight_gradient(const Nano& nano) {
  add_gradient(mlp_matrix());
  ledger_.give(kActivations, nano.tokens * left_bytes());
}

}  // namespace distca
