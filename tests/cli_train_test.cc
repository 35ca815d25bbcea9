// `distca train` refuses bad input in one line that says what, where and what would be right, with
// exit code 2, and leaves everything as it was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "distca/base/file.h"
#include "distca/batch/indexed_dataset.h"
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
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("Nothing was trained (train.steps = 0): the weights are the initial"),
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

TEST_F(CliTrainTest, a_folder_that_holds_what_no_run_made_is_left_alone) {
  for (const char* name : {"model.safetensors", "config.json", "config.toml", "metrics.jsonl"}) {
    const fs::path folder = folder_ / "others" / name;
    write_file_atomically(folder / name, "{}\n");
    for (const char* workers : {"1", "2"}) {
      for (const char* overwrite : {"false", "true"}) {
        EXPECT_THAT(
            refusal(train_arguments(
                prefix_, folder,
                {"--workers", workers, std::string("train.overwrite=") + overwrite})),
            AllOf(HasSubstr((folder / name).string()), HasSubstr("name another train.output_dir")));
      }
    }
    EXPECT_THAT(files_below(folder), ::testing::ElementsAre(name));
    EXPECT_EQ(read_file(folder / name), "{}\n");
  }
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
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1 has plan.profile = "),
                                   HasSubstr(profile_name(profile)), HasSubstr(", rank 0 has ")));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
  }
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(CliTrainTest, ranks_with_other_data_refuse_to_start) {
  // Other tokens of the same lengths; documents that are each one token longer.
  const IndexedDataset data(prefix_);
  const auto copy = [&](const char* name, int32_t change, bool longer) {
    IndexedDatasetWriter writer(folder_ / name, TokenType::kUint8);
    for (int64_t document = 0; document < data.num_documents(); ++document) {
      std::vector<int32_t> tokens(static_cast<size_t>(data.document_length(document)));
      data.read(document, 0, tokens);
      for (int32_t& token : tokens) token += change;
      if (longer) tokens.push_back(10);
      writer.add_document(tokens);
    }
    writer.finish();
    return folder_ / name;
  };
  const fs::path same = copy("same", 0, false), tokens = copy("tokens", 1, false),
                 longer = copy("longer", 0, true);
  const auto both = [&](const fs::path& second_data) {
    const std::string port = free_port();
    const auto rank = [&](int number, const fs::path& prefix) {
      return Program(train_arguments(prefix, folder_ / "run", {"comm.grace_s=1", "train.steps=1"}),
                     torchrun_environment(number, 2, port));
    };
    Program first = rank(0, prefix_), second = rank(1, second_data);
    const Outcome outcome = first.wait();
    EXPECT_EQ(second.wait().exit_code, outcome.exit_code);
    return outcome;
  };
  for (const fs::path& other : {tokens, longer}) {
    const Outcome outcome = both(other);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("rank 1 has data.prefix = " + other.string() + " (40"),
                      HasSubstr("rank 0 has " + prefix_.string() + " (40 documents, ")));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  }
  // Another path to the same data is fine.
  EXPECT_EQ(both(same).exit_code, 0);
}

TEST_F(CliTrainTest, data_without_a_next_token_is_refused) {
  IndexedDatasetWriter writer(folder_ / "one", TokenType::kUint8);
  writer.add_document(std::vector<int32_t>{97});
  writer.finish();
  EXPECT_THAT(refusal(train_arguments(folder_ / "one", folder_ / "run", {})),
              HasSubstr("no next token to learn"));
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
                HasSubstr("rank 1 has attention.kernel = aten-cpu, rank 0 has reference"));
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
  EXPECT_THAT(refusals("train.overlap=ping-pong", "train.overlap=within"),
              HasSubstr("rank 1 has train.overlap = within, rank 0 has ping-pong"));
  EXPECT_THAT(refusals("servers.dedicated=0", "servers.dedicated=1"),
              HasSubstr("rank 1 has servers.dedicated = 1, rank 0 has 0"));
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
