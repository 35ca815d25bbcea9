#include "distca/comm/launch/own_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"

namespace distca {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(OwnAddress, of_the_way_to_this_machine_is_a_loopback_address) {
  const auto address = address_towards("127.0.0.1", 29400);
  ASSERT_TRUE(address.has_value());
  EXPECT_EQ(*address, "127.0.0.1");
  EXPECT_TRUE(is_loopback(*address));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_FALSE(is_loopback("192.168.77.1"));
  EXPECT_EQ(address_towards("no.such.host.invalid", 1), std::nullopt);
}

TEST(OwnAddress, a_network_is_the_same_for_all_processes_of_a_machine) {
  EXPECT_FALSE(network_id().empty());
  EXPECT_EQ(network_id(), network_id());
}

TEST(OwnAddress, an_interface_that_is_not_there_is_refused_with_those_that_are) {
  check_interface("lo");
  try {
    check_interface("eth99");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(),
                StartsWith("GLOO_SOCKET_IFNAME=eth99: no such interface; there are "));
    EXPECT_THAT(error.what(), HasSubstr("lo"));
  }
}

}  // namespace
}  // namespace distca
