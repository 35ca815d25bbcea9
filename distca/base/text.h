#pragma once
// Text for people: nearest known word, sizes, numbers, bars and tables. ASCII. Any thread.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace distca {

/// The known word that `word` was probably meant to be: fewest edits (insert, delete, replace, swap
/// of neighbours), at most 2 and at most a third of its length rounded up; the first of equals.
/// None if none is near.
std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> known);

/// "17 B", "1.5 GiB".
std::string human_bytes(int64_t bytes);
/// "1,234,567".
std::string with_thousands(int64_t number);
/// `width` characters, the share `fraction` (clamped to [0, 1]) of them '#', the rest spaces. Any
/// fraction above 0 shows at least one '#'.
std::string bar(double fraction, int width);

/// Lines of at most `width` characters, those after the first of `indent` fewer, cut at spaces; a
/// longer word has a line of its own. At least one line.
std::vector<std::string> wrapped(std::string_view text, size_t width, size_t indent = 0);
/// The same as one text, later lines indented by two. No newline at the end.
std::string wrap(std::string_view text, size_t columns);

/// Columns aligned: the first to the left, the others to the right unless they hold text that is
/// not a number.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add_row(std::vector<std::string> cells);
  /// Two spaces between columns, no trailing spaces, every line ends with a newline.
  std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace distca
