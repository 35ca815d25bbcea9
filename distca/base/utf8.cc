#include "distca/base/utf8.h"

#include <utility>

namespace distca {
namespace {

/// Bytes of the character that begins with this one; 0 if none does.
size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;  // it goes on, or ASCII would be longer than it needs to be
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/// Returns true if the byte continues a character that begins with `held`.
bool goes_on(std::string_view held, unsigned char byte) {
  unsigned char least = 0x80, most = 0xbf;
  if (held.size() == 1) {
    // No character is longer than it needs to be, half of a surrogate pair, or above U+10FFFF.
    const auto first = static_cast<unsigned char>(held[0]);
    if (first == 0xe0) least = 0xa0;
    if (first == 0xed) most = 0x9f;
    if (first == 0xf0) least = 0x90;
    if (first == 0xf4) most = 0x8f;
  }
  return byte >= least && byte <= most;
}

}  // namespace

std::string Utf8Stream::add(unsigned char byte) {
  std::string shown;
  if (!held_.empty() && !goes_on(held_, byte)) shown = rest();
  held_.push_back(static_cast<char>(byte));
  const size_t length = length_of(static_cast<unsigned char>(held_[0]));
  if (length == 0) return shown + rest();
  if (held_.size() == length) shown += std::exchange(held_, {});
  return shown;
}

std::string Utf8Stream::rest() {
  return std::string(std::exchange(held_, {}).empty() ? "" : kNoCharacter);
}

bool is_utf8(std::string_view text) {
  Utf8Stream stream;
  std::string shown;
  for (const char byte : text) shown += stream.add(static_cast<unsigned char>(byte));
  return shown + stream.rest() == text;
}

}  // namespace distca
