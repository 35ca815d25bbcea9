// Runs the inputs of tests/fuzz/corpus through the fuzz targets.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "distca/base/file.h"
#include "tests/fuzz/targets.h"

namespace distca::fuzz {
namespace {

struct Replay {
  const char* name;
  Target* target;
};

class FuzzReplayTest : public ::testing::TestWithParam<Replay> {};

TEST_P(FuzzReplayTest, known_inputs_end_as_their_names_say) {
  int read = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path("tests/fuzz/corpus") / GetParam().name)) {
    const std::string bytes = read_file(entry.path()), name = entry.path().filename();
    ASSERT_TRUE(name.starts_with("read_") || name.starts_with("refused_")) << name;
    bool was_read = false;
    EXPECT_NO_THROW(was_read = GetParam().target(
                        {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}))
        << entry.path();
    EXPECT_EQ(was_read, name.starts_with("read_")) << entry.path();
    ++(was_read ? read : refused);
  }
  EXPECT_GE(read, 3);
  EXPECT_GE(refused, 10);
}

INSTANTIATE_TEST_SUITE_P(targets, FuzzReplayTest,
                         ::testing::Values(Replay{"checkpoint_index", checkpoint_index},
                                           Replay{"config", config}, Replay{"idx", idx},
                                           Replay{"plan", plan},
                                           Replay{"safetensors", safetensors}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace distca::fuzz
