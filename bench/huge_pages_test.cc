#include "bench/huge_pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

namespace distca::bench {
namespace {

TEST(Arena, hands_out_zeros_on_lines_of_their_own) {
  Arena arena;
  std::byte* first = arena.take(65);
  std::byte* second = arena.take(1);
  EXPECT_EQ(reinterpret_cast<uint64_t>(first) % (2 << 20), 0U);
  EXPECT_EQ(second - first, 128);
  EXPECT_EQ(first[64], std::byte{0});
  EXPECT_EQ(second[0], std::byte{0});
}

TEST(Arena, is_a_mapping_whose_share_of_huge_pages_is_known) {
  Arena arena;
  constexpr int64_t kBytes = 8 << 20;
  std::byte* data = arena.take(kBytes);
  std::memset(data, 1, kBytes);
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  if (!std::getline(setting, words) || words.find("[never]") != std::string::npos)
    GTEST_SKIP() << "this system grants no huge pages";
  EXPECT_GT(huge_page_share(data), 0);
  EXPECT_LE(huge_page_share(data), 1);
  EXPECT_EQ(huge_page_share(nullptr), 0);
}

}  // namespace
}  // namespace distca::bench
