#include "distca/report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/json_field.h"
#include "distca/base/text.h"

namespace distca {
namespace {

constexpr double kPlainLineEverySeconds = 5;

/// Drops the sign of a NaN, which means nothing.
double plain(double loss) { return std::isnan(loss) ? std::abs(loss) : loss; }

std::string describe_step(const ShownStep& s) {
  const std::string total = std::to_string(s.total_steps);
  return fmt::format("step {:>{}}/{}", s.step, total.size(), total);
}

/// At most 6 characters: "98,765", "123k", "12.3M", "1,234M".
std::string short_number(double number) {
  if (number < 99'999.5) return with_thousands(std::llround(number));
  if (number < 999'500) return fmt::format("{:.0f}k", number / 1e3);
  if (number < 99'950'000) return fmt::format("{:.1f}M", number / 1e6);
  return with_thousands(std::llround(number / 1e6)) + "M";
}

/// "0-1K", "16-64K", "256K-1M".
std::string describe_band(const ShownStep::Band& band) {
  constexpr int64_t kKibi = 1 << 10, kMebi = 1 << 20;
  const auto describe = [&](int64_t position) {
    return position < kMebi ? fmt::format("{}K", position / kKibi)
                            : fmt::format("{}M", position / kMebi);
  };
  std::string begin = describe(band.begin);
  const std::string end = describe(band.end);
  if (band.begin == 0 || begin.back() == end.back()) begin.pop_back();
  return begin + "-" + end;
}

/// NaN where the line has null, as JSON writes what is not finite.
double figure(const JsonField& field, const Json& line, const char* name) {
  return line.contains(name) && line.at(name).is_null() ? NAN : field[name].number();
}

/// Seconds since 1970 of a time such as "2026-11-23T02:13:05.123Z".
double seconds_of(const JsonField& field) {
  const std::string text = field.text();
  std::tm parts{};
  const char* rest = strptime(text.c_str(), "%FT%T", &parts);
  field.expect(rest != nullptr, "a time such as 2026-11-23T02:13:05.123Z");
  return static_cast<double>(timegm(&parts)) + std::strtod(rest, nullptr);
}

}  // namespace

std::string clock_time(double seconds) {
  const int64_t all = std::llround(std::max(0.0, seconds));
  const int64_t days = all / 86400, hours = all / 3600 % 24, minutes = all / 60 % 60, s = all % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, s);
  return fmt::format("{}:{:02}", minutes, s);
}

ShownStep shown_step(const Json& line, std::string_view place) {
  const JsonField field(line, place, ErrorKind::kData);
  const auto number = [&](const char* name) { return figure(field, line, name); };
  ShownStep step{.step = field["step"].integer(1),
                 .total_steps = field["train_steps"].integer(1),
                 .time_s = seconds_of(field["time"]),
                 .left_s = number("time_left_s"),
                 .grad_norm = number("grad_norm"),
                 .lr = number("lr"),
                 .imbalance_before = number("imbalance_before"),
                 .imbalance_after = number("imbalance_after"),
                 .tokens_per_s = number("tokens_per_s"),
                 .share_of_peak = number("share_of_peak")};
  step.is_last = step.step == step.total_steps || field.has("ended_by");
  const bool has_targets = !field.has("targets") || field["targets"].integer(0) > 0;
  if (has_targets) step.loss = number("loss");
  if (field.has("tensor_bytes")) {
    for (const int64_t bytes : field["tensor_bytes"].integers(0))
      step.memory_bytes = std::max(step.memory_bytes, bytes);
  }
  if (field.has("validation_loss")) step.validation_loss = number("validation_loss");
  if (!field.has("validation_loss_by_position")) return step;
  const JsonField bands = field["validation_loss_by_position"];
  for (size_t i = 0; i < bands.size(); ++i) {
    step.by_position.push_back(
        {.begin = bands.at(i)["begin"].integer(0),
         .end = bands.at(i)["end"].integer(0),
         .loss = figure(bands.at(i), line.at("validation_loss_by_position").at(i), "loss")});
  }
  return step;
}

std::string progress_line(const ShownStep& s, size_t columns) {
  // The product's figure comes before what any trainer says.
  const std::vector<std::string> fields = {
      describe_step(s),
      s.loss ? fmt::format("loss {:.3f}", plain(*s.loss)) : "loss -",
      fmt::format("max/mean {:.2f}>{:.2f}", s.imbalance_before, s.imbalance_after),
      short_number(s.tokens_per_s) + " tok/s",
      fmt::format("{}{} left", s.step == 1 && s.total_steps > 1 ? "~" : "", clock_time(s.left_s)),
      fmt::format("lr {:.2e}", s.lr),
      fmt::format("norm {:.3g}", plain(s.grad_norm)),
      fmt::format("{:.0f} % peak", 100 * s.share_of_peak),
      s.memory_bytes == 0 ? "" : "memory " + human_bytes(s.memory_bytes)};
  std::string line;
  for (const std::string& field : fields) {
    if (field.empty()) continue;
    const std::string longer = line + (line.empty() ? "" : "  ") + field;
    if (longer.size() > columns) break;
    line = longer;
  }
  return line;
}

std::string validation_lines(const ShownStep& s) {
  std::string text =
      fmt::format("{}  validation loss {:.3f}", describe_step(s), plain(*s.validation_loss));
  if (s.by_position.size() < 2) return text;
  text += "\n  by position";
  for (const ShownStep::Band& band : s.by_position)
    text += fmt::format("  {} {:.3f}", describe_band(band), plain(band.loss));
  return text;
}

double TimeLeft::after(int64_t step, double step_s) {
  const double now = steady_seconds();
  if (step == first_step_) first_step_end_s_ = now;
  const double mean_s = step == first_step_
                            ? step_s
                            : (now - first_step_end_s_) / static_cast<double>(step - first_step_);
  return mean_s * static_cast<double>(total_steps_ - step);
}

Progress::~Progress() {
  console_.keep_progress();
  console_.finish(kConsolePatience);
}

void Progress::show(const ShownStep& s) {
  const bool terminal = console_.is_terminal();
  if (s.validation_loss) console_.line(validation_lines(s));
  // The difference without its sign: somebody may have put the clock back.
  const bool is_soon = std::abs(s.time_s - last_shown_s_) < kPlainLineEverySeconds;
  if (!terminal && !s.is_last && !s.validation_loss && is_soon) return;
  last_shown_s_ = s.time_s;
  // A line that wraps could not be overwritten.
  const size_t columns = terminal ? console_.columns() - 1 : std::string::npos;
  const std::string text = progress_line(s, columns);
  if (s.is_last) {
    console_.line(text);
  } else {
    console_.progress(text);
  }
}

}  // namespace distca
