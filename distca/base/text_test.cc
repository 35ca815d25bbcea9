#include "distca/base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(Wrap, breaks_at_spaces_and_indents) {
  EXPECT_EQ(wrap("", 10), "");
  EXPECT_EQ(wrap("0123456789", 10), "0123456789");
  EXPECT_EQ(wrap("one two six ten", 10), "one two\n  six ten");
  EXPECT_EQ(wrap("one a-long-word-of-its-own two", 10), "one\n  a-long-word-of-its-own\n  two");
}

TEST(NearestWord, typos_find_their_word_and_nonsense_does_not) {
  const std::vector<std::string> known{"nano_batch_tokens", "seed", "layers", "learning_rate"};
  EXPECT_EQ(nearest_word("sede", known), "seed");
  EXPECT_EQ(nearest_word("nano_batch_token", known), "nano_batch_tokens");
  EXPECT_EQ(nearest_word("learnign_rate", known), "learning_rate");
  EXPECT_EQ(nearest_word("momentum", known), std::nullopt);
  EXPECT_EQ(nearest_word("send", known), "seed") << "1 edit";
  EXPECT_EQ(nearest_word("load", known), std::nullopt) << "3 edits are another word";
  EXPECT_EQ(nearest_word("sends", known), std::nullopt) << "2 edits of 5 letters, too";
  EXPECT_EQ(nearest_word("nano_batch_tok", known), std::nullopt) << "3 edits of a long word, too";
}

TEST(HumanBytes, units_change_at_1024) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(int64_t{3} << 29), "1.5 GiB");
}

TEST(Wrapped, lines_end_at_spaces_and_hold_what_fits) {
  EXPECT_THAT(wrapped("one two three", 7), ::testing::ElementsAre("one two", "three"));
  EXPECT_THAT(wrapped("one two", 6), ::testing::ElementsAre("one", "two"));
  EXPECT_THAT(wrapped("a much-too-long word", 5),
              ::testing::ElementsAre("a", "much-too-long", "word"));
  EXPECT_THAT(wrapped("", 5), ::testing::ElementsAre(""));
}

TEST(WithThousands, groups_of_three_with_sign) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1234567), "1,234,567");
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(2000, "step"), "2,000 steps");
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(with_thousands(-123456), "-123,456");
}

TEST(Bar, width_is_fixed_and_little_is_not_nothing) {
  EXPECT_EQ(bar(0, 4), "    ");
  EXPECT_EQ(bar(0.001, 4), "#   ");
  EXPECT_EQ(bar(0.5, 4), "##  ");
  EXPECT_EQ(bar(1.5, 4), "####");
}

TEST(Table, text_to_the_left_and_numbers_to_the_right) {
  Table table({"server", "load", "bar"});
  table.add_row({"0", "1,000", "##"});
  table.add_row({"10", "7", "#"});
  EXPECT_EQ(table.to_string(),
            "server   load  bar\n"
            "0       1,000  ##\n"
            "10          7  #\n");
}

}  // namespace
}  // namespace distca
