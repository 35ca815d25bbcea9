#include "bench/overlap_settings.h"

#include <gmock/gmock.h>

namespace distca::bench {
namespace {

using ::testing::ElementsAre;

TEST(OverlapSettings, are_shorter_and_longer_at_each_rate) {
  const auto settings = overlap_settings({25, 50}, {250, 0});
  std::vector<std::string> judged, shown;
  for (const OverlapSetting& setting : settings)
    (setting.judged ? judged : shown).push_back(setting.name());
  EXPECT_THAT(judged, ElementsAre("25 MB/s shorter", "50 MB/s shorter", "25 MB/s longer",
                                  "50 MB/s longer"));
  EXPECT_THAT(shown, ElementsAre("25 MB/s between", "250 MB/s shorter", "unlimited shorter"));
}

}  // namespace
}  // namespace distca::bench
