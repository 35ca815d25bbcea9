// `distca train` with comm.backend=nccl: ranks as processes over the stand-in for NCCL, in host
// memory. The bits are those of Gloo, and a rank that is lost is named.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <map>
#include <thread>

#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Words kNccl = {"comm.backend=nccl"};

Environment standin(const std::string& faults = "") {
  return {{"DISTCA_NCCL_LIBRARY", DISTCA_NCCL_STANDIN}, {"DISTCA_NCCL_STANDIN", faults}};
}

class NcclTrainingTest : public TrainingTest {
 protected:
  Training train_over_nccl(const std::string& name, const Words& more,
                           const std::string& faults = "") const {
    const Outcome outcome = Program(arguments(joined(kNccl, more), name), standin(faults)).wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "") << name;
    return read_training(name);
  }
};

TEST_F(NcclTrainingTest, has_the_bits_of_gloo_with_workers_servers_stages_and_divided_layers) {
  const std::string stages = "parallel.pipeline_model_parallel_size=2",
                    tensor = "parallel.tensor_model_parallel_size=2";
  for (const auto& [name, more] : std::map<std::string, Words>{
           {"workers", {"--workers", "2"}},
           {"server", {"--workers", "2", "servers.dedicated=1", "exchange.keys=redispatch"}},
           {"stages", {"--workers", "2", stages, "batch.nano_batches=4"}},
           {"tensor", {"--workers", "2", tensor}},
           {"tensor_stages",
            {"--workers", "4", tensor, stages, "batch.nano_batches=4", "train.steps=3",
             "parallel.use_distributed_optimizer=true"}},
           {"replicas",
            {"--workers", "4", stages, "batch.nano_batches=4", "train.steps=3",
             "parallel.use_distributed_optimizer=true"}}}) {
    const Training gloo = train(name + "_gloo", more);
    EXPECT_GT(gloo.bytes_sent, 0) << name;
    // Each group of messages begins up to half a millisecond late.
    expect_same_bits(train_over_nccl(name + "_nccl", more, "delay,us=500"), gloo);
  }
}

TEST_F(NcclTrainingTest, under_torchrun_ranks_meet_as_with_gloo) {
  const Words two = joined(kNccl, {"train.steps=2"});
  const std::string port = free_port();
  const auto environment = [&](int rank) {
    Environment all = torchrun_environment(rank, 2, port);
    all.merge(standin());
    return all;
  };
  Program first(arguments(two), environment(0)), second(arguments(two), environment(1));
  const Outcome one = first.wait(), other = second.wait();
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(metrics().size(), 2u);
}

class LostNcclRankTest : public NcclTrainingTest {
 protected:
  /// A whole run of two ranks takes as long, so no wait of a healthy rank does, however slow this
  /// machine is.
  std::string timeout() const {
    const auto begin = std::chrono::steady_clock::now();
    train_over_nccl("measured", {"--workers", "2", "train.steps=3"});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return fmt::format("comm.timeout_s={}", std::max(5., took.count()));
  }

  /// Signals rank 1 in the middle of a step; the last line on stderr.
  std::string last_line_after(int signal) {
    program_.emplace(
        arguments(joined(kNccl, {"--workers", "2", "train.steps=1000000",
                                 "train.validation_every=0", timeout(), "comm.grace_s=2"})),
        standin());
    EXPECT_TRUE(wait_until([&] { return metrics().size() >= 3; })) << "no third step";
    std::this_thread::sleep_for(std::chrono::duration<double>(1));  // a heartbeat, at least
    kill(program_->pid_of_rank(1), signal);
    const Outcome outcome = program_->wait();
    EXPECT_EQ(program_->processes().size(), 0u);
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    const size_t before = outcome.err.rfind('\n', outcome.err.size() - 2);
    return outcome.err.substr(before == std::string::npos ? 0 : before + 1);
  }
};

TEST_F(LostNcclRankTest, a_killed_rank_is_named) {
  EXPECT_THAT(last_line_after(SIGKILL),
              AllOf(StartsWith("distca: error: "),
                    HasSubstr("rank 1 was killed by signal 9 (SIGKILL)"), HasSubstr("step ")));
}

TEST_F(LostNcclRankTest, a_stopped_rank_is_named) {
  EXPECT_THAT(last_line_after(SIGSTOP),
              AllOf(StartsWith("distca: error: "), HasSubstr("rank 1 is silent since "),
                    HasSubstr("last seen: step ")));
}

TEST_F(LostNcclRankTest, an_error_that_nccl_reports_ends_the_run_with_its_words) {
  const Words two = joined(kNccl, {"--workers", "2", timeout(), "comm.grace_s=1"});
  const Outcome outcome = Program(arguments(two), standin("error,rank=1,group=30")).wait();
  EXPECT_THAT(error_line(outcome, 1),
              AllOf(HasSubstr("NCCL: unhandled system error (a fault that a test asked for)"),
                    HasSubstr("rank 1 lost its connection to rank 0 in ")));
}

}  // namespace
}  // namespace distca::testing
