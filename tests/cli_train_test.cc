// `distca train` refuses bad input in one line that says what, where and what would be right, with
// exit code 2, and leaves everything as it was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "distca/cost/attention_profile.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CliTrainTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    prefix_ = make_data_set(folder_);
  }

  /// The refusal of a training run with `more` behind its arguments.
  std::string train_refusal(const std::vector<std::string>& more) {
    const std::vector<std::string> before = files_below(folder_);
    const std::string line = refusal(train_arguments(prefix_, folder_ / "run", more));
    EXPECT_EQ(files_below(folder_), before);
    EXPECT_FALSE(fs::exists(folder_ / "run"));
    return line;
  }
  fs::path with(const char* extension) const { return prefix_.string() + extension; }

  fs::path prefix_;
};

/// A port of all interfaces that is taken while this lives.
class TakenPort {
 public:
  TakenPort() : fd_(socket(AF_INET6, SOCK_STREAM, 0)) {
    sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    sockaddr_in any4 = {.sin_family = AF_INET};
    const bool taken = fd_ >= 0 && take(any6);
    if (!taken) {  // a machine without IPv6
      if (fd_ >= 0) close(fd_);
      fd_ = socket(AF_INET, SOCK_STREAM, 0);
      EXPECT_TRUE(take(any4));
    }
    socklen_t size = sizeof(any6);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&any6), &size);
    port_ = ntohs(any6.sin6_port);  // at the same place in both families
  }
  ~TakenPort() { close(fd_); }

  std::string port() const { return std::to_string(port_); }

 private:
  template <typename Address>
  bool take(const Address& address) {
    return bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
           listen(fd_, 1) == 0;
  }

  int fd_;
  uint16_t port_ = 0;
};

TEST_F(CliTrainTest, the_summary_names_the_architecture_saved_and_a_run_of_no_step) {
  const Outcome outcome = run_distca(
      train_arguments(prefix_, folder_ / "run", {"train.steps=0", "model.sliding_window=64"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("No step was made: the weights saved are the initial"),
                                 HasSubstr("/config.json        MistralForCausalLM\n")));
  EXPECT_THAT(read_file(folder_ / "run" / "config.json"), HasSubstr("MistralForCausalLM"));
  EXPECT_THAT(read_file(folder_ / "run" / "config.toml"),
              AllOf(HasSubstr("\nsteps = 0\n"), ::testing::Not(HasSubstr("default"))));
}

TEST_F(CliTrainTest, a_port_in_use_is_named) {
  const TakenPort taken;
  EXPECT_THAT(train_refusal({"--workers", "2", "--master-port", taken.port()}),
              AllOf(HasSubstr("port " + taken.port()), HasSubstr("in use")));
}

TEST_F(CliTrainTest, a_folder_that_holds_a_run_is_left_alone) {
  write_file_atomically(folder_ / "old" / "metrics.jsonl", "{}\n");
  for (const char* workers : {"1", "2"}) {
    EXPECT_THAT(refusal(train_arguments(prefix_, folder_ / "old", {"--workers", workers})),
                AllOf(HasSubstr((folder_ / "old").string()), HasSubstr("train.overwrite=true")));
  }
  EXPECT_THAT(files_below(folder_ / "old"), ::testing::ElementsAre("metrics.jsonl"));
  EXPECT_EQ(read_file(folder_ / "old" / "metrics.jsonl"), "{}\n");
}

TEST_F(CliTrainTest, an_instruction_set_that_is_not_here_is_refused_before_anything_is_written) {
  const auto with = [&](const char* isa, const std::vector<std::string>& more) {
    return Program(train_arguments(prefix_, folder_ / "run", more), {{"DISTCA_KERNEL_ISA", isa}})
        .wait();
  };
  const Outcome refused = with("avx1024", {"--workers", "2"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("DISTCA_KERNEL_ISA"), HasSubstr("avx1024"), HasSubstr("portable")));
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  EXPECT_THAT(with("portable", {}).out, HasSubstr("attention kernel cpu-portable"));
}

TEST_F(CliTrainTest, ranks_with_different_profiles_refuse_to_start) {
  AttentionProfile profile = h200_profile();
  write_file_atomically(folder_ / "a.json", profile_to_json(profile));
  profile.forward_ns.back() += 1;
  write_file_atomically(folder_ / "b.json", profile_to_json(profile));
  const std::string port = free_port();
  const auto rank = [&](int number, const char* file) {
    return Program(train_arguments(prefix_, folder_ / "run",
                                   {"comm.grace_s=1", "plan.profile=" + (folder_ / file).string()}),
                   torchrun_environment(number, 2, port));
  };
  Program first = rank(0, "a.json"), second = rank(1, "b.json");
  for (Program* program : {&first, &second}) {
    const Outcome outcome = program->wait();
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("plan.profile: rank 1 would plan by"),
                                   HasSubstr(profile_name(profile)), HasSubstr("rank 0 by")));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
  }
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(CliTrainTest, ranks_with_different_kernels_refuse_to_start) {
  const std::string port = free_port();
  const auto rank = [&](int number, const char* kernel) {
    return Program(train_arguments(prefix_, folder_ / "run",
                                   {"comm.grace_s=1", std::string("attention.kernel=") + kernel}),
                   torchrun_environment(number, 2, port));
  };
  Program first = rank(0, "reference"), second = rank(1, "aten");
  for (Program* program : {&first, &second}) {
    const Outcome outcome = program->wait();
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err,
                HasSubstr("attention.kernel: rank 1 would compute attention with aten-cpu, rank 0 "
                          "with reference"));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
  }
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(CliTrainTest, ranks_with_different_schedules_or_servers_refuse_to_start) {
  const auto refusals = [&](const char* first_word, const char* second_word) {
    const std::string port = free_port();
    const auto rank = [&](int number, const char* word) {
      return Program(train_arguments(prefix_, folder_ / "run", {"comm.grace_s=1", word}),
                     torchrun_environment(number, 2, port));
    };
    Program first = rank(0, first_word), second = rank(1, second_word);
    const Outcome outcome = first.wait();
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(second.wait().exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refusals("train.schedule=ping-pong", "train.schedule=overlap"),
              HasSubstr("train.schedule: rank 1 would play by overlap, rank 0 by ping-pong"));
  EXPECT_THAT(refusals("servers.dedicated=0", "servers.dedicated=1"),
              HasSubstr("servers.dedicated: rank 1 would train with 1, rank 0 with 0"));
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(CliTrainTest, a_printed_configuration_reads_back_as_the_same) {
  const Outcome first = run_distca(
      train_arguments(prefix_, folder_ / "run", {"--print-config", "optimizer.lr=3e-4"}));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  write_file_atomically(folder_ / "printed.toml", first.out);
  const Outcome second =
      run_distca({"train", "--config", folder_ / "printed.toml", "--print-config"});
  EXPECT_EQ(second.out, first.out);
  EXPECT_THAT(first.out, HasSubstr("\nlr = 0.0003  # "));
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

}  // namespace
}  // namespace distca::testing
