#include "distca/report/metrics.h"

#include <fmt/chrono.h>

#include <chrono>
#include <ctime>

namespace distca {
namespace {

Json phase_times(const OpTimes& times) {
  Json phases = Json::object();
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      const double seconds = times.of(OpKind(kind), pass);
      if (seconds == 0) continue;
      phases[fmt::format("{}_{}_ms", pass == Pass::kForward ? "forward" : "backward",
                         op_name(OpKind(kind)))] = seconds * 1e3;
    }
  }
  return phases;
}

Json exchange_times(const OpTimes& times) {
  return {{"pack_ms", times.of(OpPart::kPack) * 1e3},
          {"issue_ms", times.of(OpPart::kIssue) * 1e3},
          {"wait_ms", times.of(OpPart::kWait) * 1e3},
          {"land_ms", times.of(OpPart::kLand) * 1e3}};
}

/// "2026-11-23T02:13:05.123Z"
std::string time_of_day() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  return fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(ms / 1000)),
                     ms % 1000);
}

void add_memory(const std::vector<MemoryUse>& ranks, Json* line) {
  for (const MemoryUse& rank : ranks) {
    (*line)["tensor_bytes"].push_back(rank.now_bytes);
    (*line)["peak_bytes"].push_back(rank.peak_bytes);
    (*line)["resident_bytes"].push_back(rank.resident_bytes);
    (*line)["weight_copy_bytes"].push_back(rank.weight_copy_bytes);
    (*line)["optimizer_bytes"].push_back(rank.optimizer_bytes);
  }
}

Json json_of(const PositionBand& band) {
  return {
      {"begin", band.begin}, {"end", band.end}, {"loss", band.loss()}, {"targets", band.targets}};
}

/// 0.00015, not 0.00015000000000000001.
double in_12_digits(double value) { return std::stod(fmt::format("{:.12g}", value)); }

}  // namespace

Json speeds_json(const Speeds& speeds) {
  Json json = {{"from_step", speeds.from_step}, {"bytes_per_us", speeds.bytes_per_us}};
  for (const RankSpeed& rank : speeds.ranks) {
    json["linear_ps_per_token"].push_back(rank.linear_ps_per_token);
    json["attention_ps_per_kload"].push_back(rank.attention_ps_per_kload);
  }
  return json;
}

Json metrics_line(const StepMetrics& m, const Config& config, const ResolvedConfig& resolved) {
  // Every step of a run, in all its starts, has as many tokens.
  const int64_t step_tokens = config.batch.nano_batches * config.batch.nano_batch_tokens;
  Json line = {{"step", m.step},
               {"train_steps", config.train.steps},
               {"time", time_of_day()},
               {"loss", m.loss ? Json(*m.loss) : Json()},
               {"grad_norm", m.grad_norm},
               {"lr", in_12_digits(m.lr)},
               {"tokens", m.plan.tokens},
               {"targets", m.plan.targets},
               {"tokens_so_far", m.step * step_tokens},
               {"step_s", m.step_s},
               {"tokens_per_s", m.plan.tokens / m.step_s},
               {"model_flops_per_s", m.model_flops / m.step_s},
               {"share_of_peak", m.model_flops / m.step_s / m.peak_flops_per_s},
               {"imbalance_before", m.plan.imbalance_before},
               {"imbalance_after", m.plan.imbalance_after},
               {"bytes_sent", m.bytes.sent},
               {"bytes_packed", m.bytes.packed},
               {"bytes_unpacked", m.bytes.unpacked},
               {"bytes_copied", m.bytes.copied},
               {"nano_batches_redispatched", m.plan.num_redispatched},
               {"plan_hash", fmt::format("{:016x}", m.plan.hash)},
               {"plan_s", m.plan.plan_s},
               {"validate_s", m.plan.validate_s},
               {"plan_wait_s", m.plan.plan_wait_s},
               {"price", resolved.price},
               {"kernel", resolved.kernel},
               {"overlap", overlap_name(config.train.overlap)},
               {"attention_s", m.attention_s},
               {"waited_s", seconds_waited(m.ranks)},
               {"phases", phase_times(m.times)},
               {"exchange", exchange_times(m.times)}};
  if (!resolved.kernel_passed_over.empty())
    line["kernel_passed_over"] = resolved.kernel_passed_over;
  if (config.tensor_ranks() > 1) line["bytes_tensor"] = m.bytes_tensor;
  if (config.cluster.ranks_per_node > 0) {
    line["bytes_between_nodes"] = m.bytes_between_nodes;
    line["bytes_inside_nodes"] = m.bytes.sent - m.bytes_between_nodes;
  }
  if (!m.plan.attention_predicted_s.empty())
    line["attention_predicted_s"] = m.plan.attention_predicted_s;
  if (!m.plan.chosen.empty()) line["chosen"] = m.plan.chosen;
  if (m.speeds.from_step > 0) line["speeds"] = speeds_json(m.speeds);
  if (m.plan.speeds_from_step > 0) line["speeds_from_step"] = m.plan.speeds_from_step;
  add_memory(m.memory, &line);
  if (m.plan.bad_tokens > 0) line["bad_tokens"] = m.plan.bad_tokens;
  if (m.skipped) line["skipped"] = true;
  if (m.ends_in_time) line["ended_by"] = "train.exit_duration_in_mins";
  const CheckpointFigures& c = m.checkpoint;
  if (c.held_up_s > 0) line["checkpoint_s"] = c.held_up_s;
  if (c.copy_bytes > 0) line["checkpoint_copy_bytes"] = c.copy_bytes;
  if (c.last_complete > 0) line["last_checkpoint"] = c.last_complete;
  if (c.num_failed > 0) line["checkpoints_failed"] = c.num_failed;
  if (m.validation_loss) line["validation_loss"] = *m.validation_loss;
  for (const PositionBand& band : m.validation_by_position)
    line["validation_loss_by_position"].push_back(json_of(band));
  return line;
}

}  // namespace distca
