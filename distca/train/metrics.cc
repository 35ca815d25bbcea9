#include "distca/train/metrics.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/text.h"

namespace distca {
namespace {

constexpr double kPlainLineEverySeconds = 5;

size_t terminal_columns() {
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

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
          {"post_ms", times.of(OpPart::kPost) * 1e3},
          {"wait_ms", times.of(OpPart::kWait) * 1e3},
          {"land_ms", times.of(OpPart::kLand) * 1e3}};
}

/// 0.00015, not 0.00015000000000000001.
double in_12_digits(double value) { return std::stod(fmt::format("{:.12g}", value)); }

/// What plans of later steps are made with.
Json speeds_json(const Speeds& speeds) {
  Json json = {{"from_step", speeds.from_step}, {"bytes_per_us", speeds.bytes_per_us}};
  for (const RankSpeed& rank : speeds.ranks) {
    json["linear_ps_per_token"].push_back(rank.linear_ps_per_token);
    json["attention_ps_per_kload"].push_back(rank.attention_ps_per_kload);
  }
  return json;
}

}  // namespace

Metrics::Metrics(const std::filesystem::path& directory, int64_t total_steps, RunLabels labels)
    : total_steps_(total_steps),
      labels_(std::move(labels)),
      terminal_(isatty(STDOUT_FILENO) == 1),
      start_s_(steady_seconds()) {
  const std::filesystem::path path = directory / "metrics.jsonl";
  file_ = std::fopen(path.c_str(), "w");
  if (file_ == nullptr) throw Error(ErrorKind::kIo, "{}: {}", path.string(), std::strerror(errno));
}

Metrics::~Metrics() { std::fclose(file_); }

void Metrics::record(const StepMetrics& m) {
  Json line = {{"step", m.step},
               {"loss", m.loss},
               {"grad_norm", m.grad_norm},
               {"lr", in_12_digits(m.lr)},
               {"tokens", m.tokens},
               {"step_s", m.step_s},
               {"tokens_per_s", m.tokens / m.step_s},
               {"model_flops_per_s", m.model_flops / m.step_s},
               {"share_of_peak", m.model_flops / m.step_s / m.peak_flops_per_s},
               {"imbalance_before", m.imbalance_before},
               {"imbalance_after", m.imbalance_after},
               {"bytes_sent", m.bytes.sent},
               {"bytes_packed", m.bytes.packed},
               {"bytes_unpacked", m.bytes.unpacked},
               {"bytes_copied", m.bytes.copied},
               {"nano_batches_resent", m.num_resent},
               {"plan_s", m.plan_s},
               {"plan_wait_s", m.plan_wait_s},
               {"price", labels_.price},
               {"kernel", labels_.kernel},
               {"schedule", labels_.schedule},
               {"attention_s", m.attention_s},
               {"phases", phase_times(m.times)},
               {"exchange", exchange_times(m.times)}};
  if (!m.attention_predicted_s.empty()) line["attention_predicted_s"] = m.attention_predicted_s;
  if (!m.chosen.empty()) line["chosen"] = m.chosen;
  if (m.speeds.from_step > 0) line["speeds"] = speeds_json(m.speeds);
  if (m.speeds_from_step > 0) line["speeds_from_step"] = m.speeds_from_step;
  if (m.validation_loss) line["validation_loss"] = *m.validation_loss;
  const std::string text = line.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
    throw Error(ErrorKind::kIo, "metrics.jsonl: {}", std::strerror(errno));
  }
  if (m.validation_loss) validation_loss_ = m.validation_loss;
  show(m);
}

void Metrics::show(const StepMetrics& m) {
  const double now = steady_seconds();
  const bool last = m.step == total_steps_;
  if (!terminal_ && !last && !m.validation_loss && now - last_shown_s_ < kPlainLineEverySeconds)
    return;
  last_shown_s_ = now;
  const double left_s =
      (now - start_s_) / static_cast<double>(m.step) * static_cast<double>(total_steps_ - m.step);
  const std::string held_out =
      validation_loss_ ? fmt::format("  held-out {:.3f}", *validation_loss_) : "";
  const std::string text = fmt::format(
      "step {:>5}/{}  loss {:.3f}{}  {}:{:02} left  {:>6} tok/s ({:.0f} % of peak)  "
      "attention max/mean {:.2f} -> {:.2f}",
      m.step, total_steps_, m.loss, held_out, static_cast<int64_t>(left_s) / 60,
      static_cast<int64_t>(left_s) % 60, with_thousands(std::llround(m.tokens / m.step_s)),
      100 * m.model_flops / m.step_s / m.peak_flops_per_s, m.imbalance_before, m.imbalance_after);
  if (terminal_) {
    constexpr int kBarWidth = 12;
    const double done = static_cast<double>(m.step) / static_cast<double>(total_steps_);
    const std::string line = fmt::format("[{}] {}", bar(done, kBarWidth), text);
    // A line that wraps could not be overwritten.
    std::fprintf(stdout, "\r%s\033[K%s", line.substr(0, terminal_columns() - 1).c_str(),
                 last ? "\n" : "");
  } else {
    std::fprintf(stdout, "%s\n", text.c_str());
  }
  std::fflush(stdout);
}

}  // namespace distca
