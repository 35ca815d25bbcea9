#pragma once
// Text in UTF-8 whose bytes come one after another and need not make whole characters.
//
//     Utf8Stream stream;
//     for (const unsigned char byte : bytes) std::cout << stream.add(byte) << std::flush;
//     std::cout << stream.rest();
//
// Thread rule: one thread at a time uses a stream.

#include <string>
#include <string_view>

namespace distca {

/// The text shown for bytes that make no character: U+FFFD.
inline constexpr std::string_view kNoCharacter = "\xef\xbf\xbd";

/// Gives whole characters as soon as they are whole.
class Utf8Stream {
 public:
  /// Returns what this byte completes: a character, kNoCharacter for bytes that make none, or
  /// nothing yet.
  std::string add(unsigned char byte);
  /// At the end: kNoCharacter if the bytes end within a character, else nothing.
  std::string rest();

 private:
  std::string held_;  // the first bytes of a character
};

/// Returns true if the bytes are whole characters.
bool is_utf8(std::string_view text);

}  // namespace distca
