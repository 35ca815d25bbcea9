#include "distca/comm/nccl/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal_of_library(const std::optional<std::string>& path) {
  try {
    load_nccl(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(NcclLibrary, a_file_that_is_not_there_or_is_not_nccl_is_named) {
  EXPECT_THAT(refusal_of_library("/nowhere/libnccl.so.2"),
              StartsWith("DISTCA_NCCL_LIBRARY = /nowhere/libnccl.so.2: NCCL cannot be loaded: "
                         "/nowhere/libnccl.so.2: cannot open shared object file"));
  EXPECT_THAT(refusal_of_library("libm.so.6"),
              AllOf(StartsWith("libm.so.6 has no ncclGetVersion: it is not NCCL 2.14 or later"),
                    HasSubstr("DISTCA_NCCL_LIBRARY")));
}

TEST(NcclLibrary, without_a_path_is_pytorchs_or_the_systems_or_says_what_to_do) {
  try {
    const NcclLibrary nccl = load_nccl(std::nullopt);
    EXPECT_THAT(nccl.path, HasSubstr("libnccl"));
    EXPECT_GE(nccl.version, 21400);
    EXPECT_FALSE(nccl.host.has_value());
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(),
                AllOf(StartsWith("NCCL cannot be loaded: this PyTorch has brought no libnccl.so.2"),
                      HasSubstr("use a PyTorch with CUDA, or name the file by ")));
  }
}

TEST(NcclLibrary, the_stand_in_has_all_functions_and_streams_of_host_memory) {
  const NcclLibrary& nccl = nccl_standin();
  EXPECT_EQ(nccl.path, DISTCA_NCCL_STANDIN);
  EXPECT_EQ(nccl_version_text(nccl.version), "2.28.9");
  EXPECT_TRUE(nccl.host.has_value());
}

TEST(NcclLibrary, one_without_streams_of_host_memory_is_refused_for_the_cpu) {
  NcclLibrary nccl = nccl_standin();
  EXPECT_NO_THROW(check_carries_host_memory(nccl));
  nccl.host.reset();
  try {
    check_carries_host_memory(nccl);
    FAIL() << "without streams";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_STREQ(error.what(),
                 "comm.backend = nccl with train.device = cpu: NCCL 2.28.9 carries the memory of "
                 "GPUs only; set comm.backend=gloo, or train.device=cuda");
  }
}

TEST(NcclLibrary, versions_are_written_as_people_do) {
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
  EXPECT_EQ(nccl_version_text(21400), "2.14.0");
  EXPECT_EQ(nccl_version_text(23007), "2.30.7");
}

TEST(NcclLibrary, a_result_is_an_exception_unless_it_is_success) {
  const NcclLibrary& nccl = nccl_standin();
  EXPECT_NO_THROW(nccl.check(kNcclSuccess, nullptr, "ncclSend"));
  try {
    nccl.check(kNcclInProgress, nullptr, "ncclCommInitRank");
    FAIL() << "our calls block";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(
        error.what(),
        "ncclCommInitRank has returned before it was done; unset NCCL_COMM_BLOCKING in the "
        "environment");
  }
  try {
    nccl.check(nccl.send(nullptr, 1, kNcclUint8, 0, nullptr, nullptr), nullptr, "ncclSend");
    FAIL() << "sent to nobody";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "ncclSend: invalid argument");
  }
}

}  // namespace
}  // namespace distca
