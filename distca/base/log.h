#pragma once
// Plain lines on stderr for people, never for machines (metrics have their own file). Any thread; a
// line is written whole.

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace distca {

enum class LogLevel { kDebug, kInfo, kWarn, kOff };

/// "debug", "info", "warn" or "off"; throws Error(kConfig) for anything else.
LogLevel log_level_from_name(std::string_view name);
/// Lines below `level` are dropped. kInfo at the start.
void set_log_level(LogLevel level);
void log_line(LogLevel level, std::string_view text);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
/// The line begins with "warning: ".
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace distca
