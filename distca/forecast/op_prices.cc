#include "distca/forecast/op_prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/parallel.h"
#include "distca/cost/task_price.h"
#include "distca/program/gradient_exchange.h"
#include "distca/sim/step_links.h"

namespace distca {
namespace {

int64_t picoseconds(double seconds) {
  DISTCA_THROW_IF(!(seconds < 1e6), ErrorKind::kData,
                  "an operation would take {:g} s by the machine's numbers", seconds);
  return std::llround(seconds * 1e12);
}

/// Bytes of state that AdamW reads and writes for an element: its gradient, the main param and both
/// moments in fp32, and the param that phases read.
double update_bytes(ScalarType compute) {
  return 4 + 3 * 8 + static_cast<double>(element_bytes(compute));
}

/// Core attention by the profile. Layers of an exchange have the same tasks, so each set and part
/// of a program is priced once.
class AttentionTimes {
 public:
  AttentionTimes(const Program& program, const AttentionProfile* profile)
      : program_(program), profile_(profile) {}

  int64_t ns(const Op& op) {
    const auto [entry, is_new] =
        known_.try_emplace({op.exchange, op.pass, static_cast<int>(op.tasks), op.part}, 0);
    if (is_new) entry->second = new_ns(op);
    return entry->second;
  }

 private:
  int64_t new_ns(const Op& op) {
    const AttentionExchange& exchange = *program_.exchanges[static_cast<size_t>(op.exchange)];
    int64_t ns = 0;
    const auto add = [&](const TaskPiece& piece) {
      const TaskPrice::Passes of_piece =
          price_of(exchange.shape).passes(piece.queries.size(), pairs_of(exchange, piece));
      ns += op.pass == Pass::kForward ? of_piece.forward : of_piece.backward;
    };
    if (const AttentionPart* part = program_.part_of(op)) {
      for (const TaskPiece& piece : part->pieces) add(piece);
      return ns;
    }
    for (const int32_t task : exchange.tasks_of(op.tasks)) {
      const int64_t queries = exchange.rows.tasks[static_cast<size_t>(task)].q.tokens;
      add({.task = task, .queries = {0, queries}});
    }
    return ns;
  }

  /// Its tables take longer than some tasks, and neighbours mostly have one shape.
  const TaskPrice& price_of(const AttentionShape& shape) {
    if (!price_ || shape_ != shape) {
      shape_ = shape;
      price_.emplace(shape, profile_);
    }
    return *price_;
  }

  const Program& program_;
  const AttentionProfile* const profile_;
  std::map<std::tuple<int, Pass, int, int>, int64_t> known_;  // exchange, pass, set of tasks, part
  AttentionShape shape_;
  std::optional<TaskPrice> price_;
};

/// The bytes of a sum of gradients or of an update. A rank adds up its slice of a bucket, in fp32,
/// and updates that or, without ZeRO-1, all of it.
double weights_bytes(const Config& config, const Program& program, const Op& op) {
  if (op.bucket < 0) return 0;
  const GradientBucket& bucket = program.gradients->buckets[static_cast<size_t>(op.bucket)];
  const Range updated = program.gradients->distributed_optimizer ? bucket.own : bucket.elements;
  return op.kind == OpKind::kOptimizer
             ? update_bytes(config.model.dtype) * static_cast<double>(updated.size())
             : static_cast<double>(bucket.reduce_receives.bytes + 2 * 4 * bucket.own.size());
}

constexpr std::array<std::string_view, 12> kSettings = {"model.model_type",
                                                        "model.hidden_size",
                                                        "model.intermediate_size",
                                                        "model.vocab_size",
                                                        "model.num_attention_heads",
                                                        "model.num_key_value_heads",
                                                        "model.head_dim",
                                                        "model.dtype",
                                                        "attention.kernel",
                                                        "parallel.tensor_model_parallel_size",
                                                        "train.threads_per_rank",
                                                        "train.device"};

/// All that leave gradients by matrices to another operation.
constexpr const char* kLeaving = ", leaving weights";

bool is_name_of_phase(const std::string& name) {
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    for (const bool leaves : {false, true}) {
      if (name == phase_name({.kind = static_cast<OpKind>(kind), .leaves_weights = leaves}))
        return true;
    }
  }
  return false;
}

/// The measured times of phases of one program's nano-batches.
class MeasuredPhases {
 public:
  MeasuredPhases(const Config& config, const Machine& machine, const Program& program)
      : config_(config), tokens_(static_cast<size_t>(program.num_nano_batches)) {
    for (const PhaseTimes& times : machine.phases)
      times_[times.phase][static_cast<size_t>(times.pass)] = &times;
    const PhaseTimes* const projections = find(op_name(OpKind::kPreAttention), Pass::kForward);
    if (projections == nullptr) return;
    for (const Op& op : program.ops) {
      if (op.kind != OpKind::kPreAttention || op.pass != Pass::kForward) continue;
      tokens_[static_cast<size_t>(op.nano_batch)] =
          std::llround(op.flops / static_cast<double>(projections->flops_per_token));
    }
  }

  /// Nothing where the phase was not measured.
  std::optional<double> seconds(const Op& op) const {
    const PhaseTimes* const times = times_of(op);
    if (times == nullptr) return std::nullopt;
    const int64_t tokens = tokens_[static_cast<size_t>(op.nano_batch)];
    if (tokens == 0) return 0;
    // Backward that computes forward again has more FLOPs than were measured.
    const double measured =
        static_cast<double>(times->flops_per_token) * static_cast<double>(tokens);
    return times->seconds(tokens) * (measured > 0 ? computed_flops(config_, op) / measured : 1);
  }

 private:
  const PhaseTimes* find(const std::string& name, Pass pass) const {
    const auto times = times_.find(name);
    return times == times_.end() ? nullptr : times->second[static_cast<size_t>(pass)];
  }

  /// Gradients by matrices that backward leaves, and that backward itself, take as long for a FLOP
  /// as backward that leaves nothing, unless they were measured.
  const PhaseTimes* times_of(const Op& op) const {
    if (const PhaseTimes* own = find(phase_name(op), op.pass)) return own;
    if (op.kind == OpKind::kWeightGradient) return find(op_name(OpKind::kPostAttention), op.pass);
    return op.leaves_weights ? find(op_name(op.kind), op.pass) : nullptr;
  }

  const Config& config_;
  std::map<std::string, std::array<const PhaseTimes*, 2>> times_;  // [name][pass]
  std::vector<int64_t> tokens_;                                    // [nano-batch]
};

}  // namespace

double computed_flops(const Config& config, const Op& op) {
  if (config.train.recompute != Recompute::kFull || op.pass == Pass::kForward) return op.flops;
  const double forward = op.leaves_weights ? op.flops : op.flops / 2;
  const bool is_divided = config.tensor_ranks() > 1;
  if (op.kind == OpKind::kPostAttention) return op.flops + (is_divided ? 2. / 3 : 1) * forward;
  const bool projects = op.kind == OpKind::kPreAttention;
  return op.flops + (projects && (!is_divided || config.model.has_qk_norm()) ? forward : 0);
}

Wire wire_of(const Machine& machine) {
  const auto port = [&](MachineNumber rate, MachineNumber latency_us) {
    return Port{.latency_ps = std::llround(machine.of(latency_us) * 1e6),
                .bytes_per_s = std::llround(machine.of(rate) * 1e9),
                .burst_bytes = std::llround(machine.of(MachineNumber::kBurstKib) * 1024)};
  };
  return {.inside = port(MachineNumber::kInsideGbPerS, MachineNumber::kInsideLatencyUs),
          .between = port(MachineNumber::kBetweenGbPerS, MachineNumber::kBetweenLatencyUs),
          .ranks_per_node = static_cast<int>(machine.of(MachineNumber::kRanksPerNode)),
          .in_order = machine.of(MachineNumber::kInOrder) != 0};
}

std::map<std::string, std::string> phase_settings(const Config& config) {
  Config looked_at = config;
  std::map<std::string, std::string> settings;
  for (const ConfigKey& key : config_keys(looked_at)) {
    if (std::ranges::find(kSettings, key.name) == kSettings.end()) continue;
    std::string& value = settings[key.name] = shown_value(key);
    std::erase(value, '\'');  // it is TOML
  }
  DISTCA_CHECK_EQ(settings.size(), kSettings.size());
  return settings;
}

std::string phase_name(const Op& op) {
  return fmt::format("{}{}", op_name(op.kind), op.leaves_weights ? kLeaving : "");
}

void check_measured(const Config& config, const Machine& machine) {
  if (machine.phases.empty()) return;
  for (const auto& [key, value] : phase_settings(config)) {
    const auto measured = machine.settings.find(key);
    DISTCA_THROW_IF(measured == machine.settings.end() || measured->second != value,
                    ErrorKind::kConfig,
                    "machine {}: its phases were measured with {} = {}, and the configuration has "
                    "{}: measure them for it (distca profile --machine)",
                    machine.name, key,
                    measured == machine.settings.end() ? "nothing" : measured->second, value);
  }
  const bool has_projections = std::ranges::any_of(machine.phases, [](const PhaseTimes& times) {
    return times.phase == op_name(OpKind::kPreAttention) && times.pass == Pass::kForward &&
           times.flops_per_token > 0;
  });
  DISTCA_THROW_IF(
      !has_projections, ErrorKind::kData,
      "machine {}: its phases lack {} forward with its FLOPs, by which tokens are counted",
      machine.name, op_name(OpKind::kPreAttention));
  for (const PhaseTimes& times : machine.phases) {
    DISTCA_THROW_IF(!is_name_of_phase(times.phase), ErrorKind::kData,
                    "machine {}: no program has a phase {}", machine.name, times.phase);
  }
}

MachinePrices::MachinePrices(const Config& config, const Machine& machine,
                             std::span<const Program> programs, int threads)
    : machine_(&machine), programs_(programs) {
  check_measured(config, machine);
  if (const std::vector<int> ranks = ranks_of(programs); ranks.size() > 1) step_ = ranks[1];
  std::vector<std::vector<Work>> works(programs.size());
  for_each_in_parallel(programs.size(), threads,
                       [&](size_t i) { works[i] = works_of(config, machine, programs[i]); });
  works_ = std::make_shared<const std::vector<std::vector<Work>>>(std::move(works));
  speeds_.assign(programs.size(), 1.0);
}

void MachinePrices::slow_down(int rank, double speed) {
  double& slowest = speeds_[program_of(rank)];
  slowest = std::min(slowest, speed);
}

MachinePrices MachinePrices::on(const Machine& machine) const {
  MachinePrices other = *this;
  other.machine_ = &machine;
  return other;
}

/// [operation]
std::vector<MachinePrices::Work> MachinePrices::works_of(const Config& config,
                                                         const Machine& machine,
                                                         const Program& program) {
  AttentionTimes attention(program, machine.attention.get());
  const MeasuredPhases phases(config, machine, program);
  std::vector<Work> works;
  works.reserve(program.ops.size());
  for (const Op& op : program.ops) {
    Work& work = works.emplace_back();
    if (communicates(op.kind)) {
      work = {.amount = static_cast<double>(packed_bytes(op, program.sends(op))),
              .landed = static_cast<double>(landed_bytes(op, program.receives(op))),
              .by = By::kCopies};
    } else if (op.kind == OpKind::kCoreAttention) {
      work = {.amount = static_cast<double>(attention.ns(op)), .by = By::kAttention};
    } else if (op.kind == OpKind::kGradAdd || op.kind == OpKind::kOptimizer) {
      work = {.amount = weights_bytes(config, program, op), .by = By::kMemory};
    } else if (const std::optional<double> seconds = phases.seconds(op)) {
      work = {.amount = *seconds, .by = By::kPhase};
    } else {  // kStepUs has what a kGradNorm takes besides waiting
      work = {.amount = computed_flops(config, op), .by = By::kLinear};
    }
  }
  return works;
}

/// The operation is one of the rank's program, so it need not be looked at.
const MachinePrices::Work& MachinePrices::work_of(int rank, const Op& op) const {
  const size_t program = program_of(rank);
  return (*works_)[program][static_cast<size_t>(&op - programs_[program].ops.data())];
}

int64_t MachinePrices::compute_ps(int rank, const Op& op) const {
  const Work& work = work_of(rank, op);
  const double speed = speeds_[program_of(rank)];
  switch (work.by) {
    case By::kAttention:
      if (work.amount == 0) return 0;
      return picoseconds(1e-9 * work.amount / speed / of(MachineNumber::kAttentionRate) +
                         1e-6 * of(MachineNumber::kAttentionCallUs));
    case By::kMemory:
      return picoseconds(work.amount / (of(MachineNumber::kMemoryGbPerS) * 1e9));
    case By::kPhase:
      return picoseconds(work.amount / speed / of(MachineNumber::kPhaseRate));
    default:
      return picoseconds(work.amount / speed / (of(MachineNumber::kLinearTflops) * 1e12));
  }
}

CommunicationPrice MachinePrices::communication(int rank, const Op& op, const MessageList& sends,
                                                const MessageList& receives) const {
  // A rate of 0 stands for bytes that take no time.
  const auto take = [&](double bytes, MachineNumber rate) {
    return of(rate) == 0 ? 0 : bytes / (of(rate) * 1e9);
  };
  const Work& work = work_of(rank, op);
  const auto sent = static_cast<double>(sends.bytes);
  return {
      .pack_ps = picoseconds(take(work.amount, MachineNumber::kCopyGbPerS)),
      .issue_ps =
          picoseconds(1e-6 * of(MachineNumber::kIssueUs) + take(sent, MachineNumber::kIssueGbPerS)),
      .core_ps =
          picoseconds(take(sent + static_cast<double>(receives.bytes), MachineNumber::kCoreGbPerS)),
      .land_ps = picoseconds(take(work.landed, MachineNumber::kCopyGbPerS))};
}

}  // namespace distca
