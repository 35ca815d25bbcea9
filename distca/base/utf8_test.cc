#include "distca/base/utf8.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

/// Returns the text that a stream shows, with '|' after that of each byte.
std::string shown(std::string_view bytes) {
  Utf8Stream stream;
  std::string all;
  for (const char byte : bytes) all += stream.add(static_cast<unsigned char>(byte)) + "|";
  return all + stream.rest();
}

TEST(utf8, a_character_is_shown_when_it_is_whole) {
  EXPECT_EQ(shown("a\n"), "a|\n|");
  EXPECT_EQ(shown("\u00e9"), "|\u00e9|");
  EXPECT_EQ(shown("\u20ac"), "||\u20ac|");
  EXPECT_EQ(shown("\U0001f600x"), "|||\U0001f600|x|");
  for (const char* text : {"\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000",
                           "\U0010ffff", "\ufffd", "", "na\u00efve caf\u00e9 \u6771\u4eac"})
    EXPECT_TRUE(is_utf8(text)) << text;
}

TEST(utf8, bytes_that_make_no_character_are_replaced) {
  EXPECT_EQ(shown("\x80z"), "\ufffd|z|");
  EXPECT_EQ(shown("\xc3z"), "|\ufffdz|");    // cut by another character
  EXPECT_EQ(shown("\xe2\x82"), "||\ufffd");  // cut by the end
  EXPECT_EQ(shown("\xe2\xc3\xa9"), "|\ufffd|\u00e9|");
  EXPECT_EQ(shown("\xc0\xaf"), "\ufffd|\ufffd|");  // too long a form of '/'
  EXPECT_EQ(shown("\xe0\x9f\xbf"), "|\ufffd\ufffd|\ufffd|");
  EXPECT_EQ(shown("\xed\xa0\x80"), "|\ufffd\ufffd|\ufffd|");  // half of a surrogate pair
  EXPECT_EQ(shown("\xf4\x90"), "|\ufffd\ufffd|");             // above U+10FFFF
  EXPECT_EQ(shown("\xff"), "\ufffd|");
  for (const char* text : {"\xff", "a\xc3", "\xf0\x8f\xbf\xbf", "\xed\xbf\xbf"})
    EXPECT_FALSE(is_utf8(text));
}

}  // namespace
}  // namespace distca
