#include "distca/base/machine.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(Machine, its_cpus_name_is_one_line_without_the_facts_name) {
  const std::string name = cpu_name();
  EXPECT_FALSE(name.empty());
  EXPECT_EQ(name.find_first_of("\n:"), std::string::npos) << name;
}

TEST(Machine, the_steady_clock_of_a_process_is_always_the_same) {
  EXPECT_EQ(steady_clock_id(), steady_clock_id());
  // A boot's number as Linux writes it, 36 characters, and the time namespace.
  EXPECT_GT(steady_clock_id().size(), 36u);
}

}  // namespace
}  // namespace distca
