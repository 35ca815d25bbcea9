#include "distca/report/run_output.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "distca/base/console.h"
#include "distca/base/text.h"

namespace distca {
namespace {

SafetensorsMetadata metadata(int64_t steps) {
  return {{kProducerKey, kProducer}, {"steps", std::to_string(steps)}};
}

}  // namespace

RunOutput::RunOutput(const Config& config, RunState& state, FilesByName beside,
                     int64_t goes_on_after, int64_t first_step)
    : config_(config),
      state_(state),
      beside_(std::move(beside)),
      folder_(config.train.output_dir,
              {.overwrite = config.train.overwrite, .goes_on_after = goes_on_after}),
      first_step_(first_step),
      time_left_(first_step, config.train.steps) {
  const Json shape = config.model.to_hugging_face(config.batch.max_document_tokens);
  folder_.reserve(safetensors_bytes(stored_weights(config.model), metadata(config.train.steps)),
                  with_eos_token_id(shape, beside_).dump(2) + "\n");
}

void RunOutput::begin(const std::string& text) {
  Config recorded = config_;
  recorded.train.overwrite = false;  // a permission, given once
  folder_.begin(recorded_config(recorded));
  // The others wait for rank 0 after a step, at most comm.timeout_s.
  metrics_.emplace(folder_.metrics_path(), std::min(2., config_.comm.timeout_s / 4));
  Console& console = standard_output();
  progress_.emplace(console);
  const std::string& replaces = folder_.replaces();
  console.line(replaces.empty() ? text : replaces + "\n" + text);
  if (first_step_ > config_.train.steps) return;
  console.progress_after(kSignOfLifeSeconds, fmt::format("step {} is under way", first_step_));
}

/// Warns of each of them once a run.
void RunOutput::warn(const StepMetrics& metrics) {
  if (metrics.plan.bad_tokens > 0 && !std::exchange(said_bad_tokens_, true)) {
    standard_error().line(fmt::format(
        "warning: step {}: the model does not have the ids of {}: what data.bad_tokens = {} says "
        "is done to them, here and later (bad_tokens in metrics.jsonl)",
        metrics.step, counted(metrics.plan.bad_tokens, "token"), config_.data.bad_tokens));
  }
  const bool keeps_keys = config_.exchange.keys == Config::Exchange::Keys::kKeep;
  if (metrics.plan.num_redispatched > 0 && keeps_keys && !std::exchange(said_redispatched_, true)) {
    standard_error().line(fmt::format(
        "warning: step {}: plan.max_memory_gib = {:g} has no room for kept keys: here, and where "
        "else they do not fit, they travel again (nano_batches_redispatched in metrics.jsonl)",
        metrics.step, config_.plan.max_memory_gib));
  }
}

void RunOutput::report(const StepMetrics& metrics, const ResolvedConfig& resolved) {
  warn(metrics);
  Json line = metrics_line(metrics, config_, resolved);
  double left_s = std::min(time_left_.after(metrics.step, metrics.step_s), metrics.limit_left_s);
  if (metrics.ends_in_time) left_s = 0;
  line["time_left_s"] = std::round(left_s * 1e3) / 1e3;  // whole milliseconds
  metrics_->add(line.dump());
  state_.step_done(metrics.step);
  progress_->show(shown_step(line, "metrics.jsonl"));
}

void RunOutput::save_weights(const std::vector<at::Tensor>& weights, int64_t steps) {
  state_.begin_saving();
  bool has_failed = false;
  folder_.save(
      [&](AtomicFile& file) { write_weights(file, config_.model, weights, metadata(steps)); },
      [&] {
        try {
          save_beside();
        } catch (const Error&) {
          has_failed = true;
        }
      });
  state_.saved();
  if (has_failed) save_beside();  // the older weights, which are gone, may have made room
}

void RunOutput::save_beside() {
  const bool may_replace = config_.train.overwrite || folder_.replaces_model();
  std::vector<std::string> others;
  if (folder_.replaces_model())
    others = files_of_other_tokenizer(config_.train.output_dir, beside_);
  set_tokenizer_aside(config_.train.output_dir, others);
  if (!others.empty()) {
    standard_error().line(fmt::format("{}: {} belonged to the run before: renamed to *{}",
                                      config_.train.output_dir, fmt::join(others, ", "), kAside));
  }
  for (const auto& [name, contents] : beside_) {
    const std::filesystem::path path = std::filesystem::path(config_.train.output_dir) / name;
    std::error_code ignored;  // if the look fails, writing fails, too, and says why
    const bool there = std::filesystem::exists(path, ignored);
    if (there && read_file(path) == contents) continue;
    if (!there || may_replace) {
      write_file_atomically(path, contents);
    } else {
      standard_error().line(
          fmt::format("warning: {}: there is another one already, which is left alone without "
                      "train.overwrite=true",
                      path.string()));
    }
  }
}

}  // namespace distca
