#include "distca/train/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/text.h"

namespace distca {
namespace {

constexpr double kPlainLineEverySeconds = 5;
constexpr double kSignOfLifeSeconds = 3;

/// What is no number has no sign worth showing.
double plain(double loss) { return std::isnan(loss) ? std::abs(loss) : loss; }

std::string step_words(int64_t step, int64_t total_steps) {
  const std::string total = std::to_string(total_steps);
  return fmt::format("step {:>{}}/{}", step, total.size(), total);
}

/// At most 6 characters: "98,765", "123k", "12.3M", "1,234M".
std::string short_number(double number) {
  if (number < 99'999.5) return with_thousands(std::llround(number));
  if (number < 999'500) return fmt::format("{:.0f}k", number / 1e3);
  if (number < 99'950'000) return fmt::format("{:.1f}M", number / 1e6);
  return with_thousands(std::llround(number / 1e6)) + "M";
}

/// Of the rank whose tensors take the most now.
std::string memory_words(const std::vector<MemoryUse>& ranks) {
  const auto most = std::ranges::max_element(ranks, {}, &MemoryUse::now_bytes);
  return most == ranks.end() ? "" : "memory " + human_bytes(most->now_bytes);
}

}  // namespace

std::string clock_time(double seconds) {
  const int64_t all = std::llround(std::max(0.0, seconds));
  const int64_t days = all / 86400, hours = all / 3600 % 24, minutes = all / 60 % 60, s = all % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, s);
  return fmt::format("{}:{:02}", minutes, s);
}

std::string progress_line(const StepMetrics& m, int64_t total_steps, double left_s,
                          size_t columns) {
  // The product's figure comes before what any trainer says.
  const std::vector<std::string> fields = {
      step_words(m.step, total_steps),
      fmt::format("loss {:.3f}", plain(m.loss)),
      fmt::format("max/mean {:.2f}>{:.2f}", m.plan.imbalance_before, m.plan.imbalance_after),
      short_number(static_cast<double>(m.plan.tokens) / m.step_s) + " tok/s",
      fmt::format("{}{} left", m.step == 1 && total_steps > 1 ? "~" : "", clock_time(left_s)),
      fmt::format("lr {:.2e}", m.lr),
      fmt::format("norm {:.3g}", plain(m.grad_norm)),
      fmt::format("{:.0f} % peak", 100 * m.model_flops / m.step_s / m.peak_flops_per_s),
      memory_words(m.memory)};
  std::string line;
  for (const std::string& field : fields) {
    if (field.empty()) continue;
    const std::string longer = line + (line.empty() ? "" : "  ") + field;
    if (longer.size() > columns) break;
    line = longer;
  }
  return line;
}

std::string validation_line(const StepMetrics& m, int64_t total_steps) {
  return fmt::format("{}  validation loss {:.3f}", step_words(m.step, total_steps),
                     plain(*m.validation_loss));
}

Progress::Progress(Console& console, int64_t first_step, int64_t total_steps)
    : console_(console), first_step_(first_step), total_steps_(total_steps) {}

Progress::~Progress() {
  console_.keep_progress();
  console_.finish(kConsolePatience);
}

void Progress::begin(const std::string& text) {
  console_.line(text);
  if (first_step_ <= total_steps_) {
    console_.progress_after(kSignOfLifeSeconds, fmt::format("step {} is under way", first_step_));
  }
}

/// The first step takes longer than those to come: from the second on it does not count.
double Progress::left_s(const StepMetrics& m) {
  const double now = steady_seconds();
  if (m.step == first_step_) first_step_end_s_ = now;
  const double step_s = m.step == first_step_
                            ? m.step_s
                            : (now - first_step_end_s_) / static_cast<double>(m.step - first_step_);
  return step_s * static_cast<double>(total_steps_ - m.step);
}

void Progress::show(const StepMetrics& m) {
  const double left = left_s(m);
  const double now = steady_seconds();
  const bool is_last = m.step == total_steps_;
  const bool terminal = console_.is_terminal();
  if (m.validation_loss) console_.line(validation_line(m, total_steps_));
  if (!terminal && !is_last && !m.validation_loss && now - last_shown_s_ < kPlainLineEverySeconds)
    return;
  last_shown_s_ = now;
  // A line that wraps could not be overwritten.
  const size_t columns = terminal ? console_.columns() - 1 : std::string::npos;
  const std::string text = progress_line(m, total_steps_, left, columns);
  if (is_last) {
    console_.line(text);
  } else {
    console_.progress(text);
  }
}

void Progress::end(const std::string& text) { console_.important(text); }

}  // namespace distca
