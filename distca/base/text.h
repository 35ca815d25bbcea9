#pragma once
// Text for people: the nearest known word, sizes, numbers, bars, line breaks and tables; numbers
// that people have written. All text is ASCII. Any thread may call these functions; a Table belongs
// to one thread at a time.
//
//     Table table({"server", "load", "share"});
//     table.add_row({"0", with_thousands(load), bar(share, 20)});
//     std::cout << table.to_string();

#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace distca {

/// The word of `known` that was probably meant by `word`: the one with the fewest edits (insert,
/// delete, replace, swap of neighbours), and the first of several such words. Nothing if it takes
/// more than 2 edits, or more than a third of the length of `word` (at least 1).
std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> known);

/// A size such as "17 B" or "1.5 GiB".
std::string human_bytes(int64_t bytes);
/// A number such as "1,234,567".
std::string with_thousands(int64_t number);
/// How many there are of what `one` names: "1 step", "2,000 steps".
std::string counted(int64_t number, std::string_view one);
/// A bar of `width` characters: the share `fraction` of them is '#', the rest are spaces.
/// `fraction` is clamped to [0, 1]. If it is above 0, at least one '#' is shown.
std::string bar(double fraction, int width);

/// Breaks `text` at spaces into lines of at most `width` characters. The lines after the first have
/// `indent` characters fewer. A word that is longer has a line of its own. There is at least one
/// line.
std::vector<std::string> wrapped(std::string_view text, size_t width, size_t indent = 0);
/// Does the same, and returns one text in which all lines but the first are indented by two spaces.
/// It does not end with a newline.
std::string wrap(std::string_view text, size_t columns);

/// The number that the whole text is, as std::from_chars reads it; nothing if it is none.
template <typename Number>
std::optional<Number> to_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, number);
  return fault == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

/// A table with aligned columns. The first column is aligned to the left. Each other column is
/// aligned to the right, unless one of its cells is not a number.
class Table {
 public:
  /// `header` has a cell for each column.
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add_row(std::vector<std::string> cells);
  /// The table with two spaces between columns and no spaces at the ends of lines. Every line ends
  /// with a newline.
  std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace distca
