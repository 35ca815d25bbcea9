#include "distca/base/text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "distca/base/error.h"
#include "distca/base/integers.h"

namespace distca {
namespace {

/// Fewest inserts, deletes, replacements and swaps of neighbours that turn `a` into `b`.
int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int64_t>> distance(a.size() + 1, std::vector<int64_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) distance[i][0] = static_cast<int64_t>(i);
  for (size_t j = 0; j <= b.size(); ++j) distance[0][j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      int64_t best = distance[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      best = std::min({best, distance[i - 1][j] + 1, distance[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) best = std::min(best, distance[i - 2][j - 2] + 1);
      distance[i][j] = best;
    }
  }
  return distance[a.size()][b.size()];
}

bool looks_like_number(std::string_view cell) {
  if (cell.starts_with('-') || cell.starts_with('+')) cell.remove_prefix(1);
  return !cell.empty() && cell.front() >= '0' && cell.front() <= '9';
}

}  // namespace

std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> known) {
  constexpr int64_t kMostEdits = 2;
  const int64_t most = std::clamp<int64_t>(static_cast<int64_t>(word.size()) / 3, 1, kMostEdits);
  const auto edits = [&](const std::string& candidate) { return edit_distance(word, candidate); };
  const auto nearest = std::ranges::min_element(known, {}, edits);
  if (nearest == known.end() || edits(*nearest) > most) return std::nullopt;
  return *nearest;
}

std::string human_bytes(int64_t bytes) {
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string with_thousands(int64_t number) {
  std::string text = fmt::format("{}", number);
  const int64_t first_digit = number < 0 ? 1 : 0;
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > first_digit; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string counted(int64_t number, std::string_view one) {
  return fmt::format("{} {}{}", with_thousands(number), one, number == 1 ? "" : "s");
}

std::string bar(double fraction, int width) {
  const double share = std::clamp(fraction, 0.0, 1.0);
  const int64_t filled = std::max<int64_t>(std::lround(share * width), share > 0 ? 1 : 0);
  return fmt::format("{:{}}", std::string(static_cast<size_t>(filled), '#'), width);
}

std::vector<std::string> wrapped(std::string_view text, size_t width, size_t indent) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    std::string& line = lines.back();
    const size_t room = lines.size() == 1 ? width : width - indent;
    if (!line.empty() && line.size() + 1 + word.size() > room) {
      lines.emplace_back(word);
    } else {
      if (!line.empty()) line += ' ';
      line += word;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string wrap(std::string_view text, size_t columns) {
  return fmt::format("{}", fmt::join(wrapped(text, columns, 2), "\n  "));
}

void Table::add_row(std::vector<std::string> cells) {
  DISTCA_CHECK_EQ(cells.size(), rows_.front().size());
  rows_.push_back(std::move(cells));
}

std::string Table::to_string() const {
  const size_t columns = rows_.front().size();
  std::vector<size_t> width(columns, 0);
  std::vector<bool> numbers(columns, true);
  numbers[0] = false;
  for (size_t row = 0; row < rows_.size(); ++row) {
    for (size_t column = 0; column < columns; ++column) {
      width[column] = std::max(width[column], rows_[row][column].size());
      if (row > 0 && !looks_like_number(rows_[row][column])) numbers[column] = false;
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t column = 0; column < columns; ++column) {
      if (column > 0) line += "  ";
      line += numbers[column] ? fmt::format("{:>{}}", row[column], width[column])
                              : fmt::format("{:<{}}", row[column], width[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace distca
