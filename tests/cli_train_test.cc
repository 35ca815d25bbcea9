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

TEST_F(CliTrainTest, a_missing_half_of_the_data_set_is_named) {
  fs::remove(with(".bin"));
  EXPECT_THAT(train_refusal({}), AllOf(HasSubstr(with(".bin")), HasSubstr("distca data prepare")));
  make_data_set(folder_);
  fs::remove(with(".idx"));
  EXPECT_THAT(train_refusal({}), AllOf(HasSubstr(with(".idx")), HasSubstr("distca data prepare")));
}

TEST_F(CliTrainTest, a_cut_half_of_the_data_set_is_named) {
  const auto bytes = fs::file_size(with(".bin"));
  fs::resize_file(with(".bin"), bytes - 1);
  EXPECT_THAT(train_refusal({"--workers", "2"}),
              AllOf(HasSubstr(with(".bin").string() + ": cut"),
                    HasSubstr(std::to_string(bytes - 1)), HasSubstr(std::to_string(bytes))));
  make_data_set(folder_);
  fs::resize_file(with(".idx"), fs::file_size(with(".idx")) - 1);
  EXPECT_THAT(train_refusal({}),
              AllOf(HasSubstr(with(".idx").string() + ": cut"), HasSubstr("40 sequences")));
}

TEST_F(CliTrainTest, a_token_beyond_the_vocabulary_is_named_with_its_place) {
  // "def" begins every document: 'e' = 101 is the first byte that 100 ids do not reach.
  EXPECT_THAT(train_refusal({"model.vocab_size=100"}),
              AllOf(HasSubstr("document 0"), HasSubstr("id 100"), HasSubstr("position 0"),
                    HasSubstr("model.vocab_size = 100 has ids 0 to 99"),
                    HasSubstr("set it to at least 121")));
  EXPECT_THAT(train_refusal({"model.vocab_size=101"}),
              AllOf(HasSubstr("document 0"), HasSubstr("id 101"), HasSubstr("position 1"),
                    HasSubstr("0 to 100")));
}

TEST_F(CliTrainTest, a_bad_value_is_named_with_what_would_be_right) {
  EXPECT_THAT(train_refusal({"model.num_key_value_heads=3"}),
              AllOf(HasSubstr("model.num_attention_heads = 4"), HasSubstr("divisible"),
                    HasSubstr("model.num_key_value_heads = 3")));
  EXPECT_THAT(train_refusal({"optimizer.learning_rate=1"}),
              HasSubstr("unknown key optimizer.learning_rate"));
  EXPECT_THAT(train_refusal({"train.step=1"}), HasSubstr("did you mean train.steps?"));
  EXPECT_THAT(train_refusal({"train.steps=few"}), HasSubstr("train.steps"));
  EXPECT_THAT(train_refusal({"train.steps=1.5"}),
              AllOf(HasSubstr("train.steps"), HasSubstr("an integer")));
  EXPECT_THAT(train_refusal({"plan.scheduler=gredy"}),
              AllOf(HasSubstr("gredy"), HasSubstr("did you mean 'greedy'")));
  EXPECT_THAT(train_refusal({"plan.scheduler=greedy-original"}),
              AllOf(HasSubstr("greedy-original"), HasSubstr("counting bytes only")));
  EXPECT_THAT(train_refusal({"plan.layout=sequential-exact"}),
              AllOf(HasSubstr("sequential-exact"), HasSubstr("must be one of \"\", balanced")));
  EXPECT_THAT(train_refusal({"plan.layout=diagonal"}),
              AllOf(HasSubstr("diagonal"), HasSubstr("sequential")));
  EXPECT_THAT(train_refusal({"--workers", "0"}), AllOf(HasSubstr("--workers"), HasSubstr("1")));
  EXPECT_THAT(train_refusal({"--workers", "100000"}), HasSubstr("1024"));
  EXPECT_THAT(train_refusal({"optimizer.beta2=1"}),
              AllOf(HasSubstr("optimizer.beta2"), HasSubstr("below 1")));
  EXPECT_THAT(train_refusal({"plan.tolerance=1e300"}),
              AllOf(HasSubstr("plan.tolerance"), HasSubstr("at most 10")));
  EXPECT_THAT(train_refusal({"plan.tolerance=20"}),
              AllOf(HasSubstr("plan.tolerance"), HasSubstr("at most 10")));
  EXPECT_THAT(train_refusal({"plan.tolerance=-0.5"}), HasSubstr("-1 for the scheduler's own"));
  EXPECT_THAT(train_refusal({"train.output_dir="}), HasSubstr("name a folder"));
  EXPECT_THAT(train_refusal({"model.hidden_size=1000000", "model.num_hidden_layers=1000"}),
              AllOf(HasSubstr("would need"), HasSubstr("AdamW's state"), HasSubstr("GiB")));
  // Before anything is read or planned, and for all ranks of the machine together.
  EXPECT_THAT(train_refusal({"--workers", "2", "batch.nano_batch_tokens=1073741824"}),
              AllOf(HasSubstr("this machine's 2 ranks would need"), HasSubstr("activations"),
                    HasSubstr("batch.nano_batch_tokens")));
  EXPECT_THAT(train_refusal({"optimizer.eps=0"}),
              AllOf(HasSubstr("optimizer.eps"), HasSubstr("at least")));
  EXPECT_THAT(train_refusal({"comm.backend=nccl"}), HasSubstr("train.device = cpu"));
  EXPECT_THAT(train_refusal({"--workers", "two"}), HasSubstr("two"));
  EXPECT_THAT(train_refusal({"--workers", "2", "--master-port", "70000"}),
              AllOf(HasSubstr("--master-port"), HasSubstr("65535")));
  EXPECT_THAT(train_refusal({"two\nlines=3"}), HasSubstr("two lines"));
}

TEST_F(CliTrainTest, a_bad_pool_of_servers_is_named_with_what_would_be_right) {
  EXPECT_THAT(train_refusal({"servers.in_place=false"}),
              AllOf(HasSubstr("servers.dedicated = 0"), HasSubstr("at least 1")));
  EXPECT_THAT(train_refusal({"servers.dedicated=-1"}),
              AllOf(HasSubstr("servers.dedicated = -1"), HasSubstr("at least 0")));
  EXPECT_THAT(train_refusal({"--workers", "1000", "servers.dedicated=100"}),
              AllOf(HasSubstr("--workers 1000"), HasSubstr("1024 processes")));
  EXPECT_THAT(train_refusal({"--workers", "2", "servers.dedicated=1", "servers.capacity=1,2"}),
              AllOf(HasSubstr("servers.capacity = 1,2"), HasSubstr("3 servers")));
  for (const char* wrong : {"1,-2", "1,2,", "a,1", ",1", "1;2"}) {
    EXPECT_THAT(train_refusal({"--workers", "2", fmt::format("servers.capacity={}", wrong)}),
                AllOf(HasSubstr("whole numbers"), HasSubstr(wrong)));
  }
  EXPECT_THAT(train_refusal({"--workers", "2", "servers.capacity=0,0"}),
              HasSubstr("capacities add up to 0"));
  EXPECT_THAT(train_refusal({"servers.dedicated=1", "plan.scheduler=local"}),
              AllOf(HasSubstr("plan.scheduler = local"), HasSubstr("use balanced or greedy")));
  EXPECT_THAT(train_refusal({"--workers", "2", "servers.capacity=1,2", "plan.scheduler=local"}),
              HasSubstr("servers.capacity = 1,2 with plan.scheduler = local"));
  EXPECT_THAT(
      train_refusal({"servers.dedicated=1", "servers.in_place=false", "servers.capacity=0,1"}),
      HasSubstr("servers.in_place = false"));
  EXPECT_THAT(train_refusal({"train.schedule=pingpong"}), HasSubstr("did you mean 'ping-pong'?"));
  EXPECT_THAT(train_refusal({"exchange.keys=dropped"}), HasSubstr("auto, kept, resent"));
}

TEST_F(CliTrainTest, ranks_of_another_launcher_without_a_worker_are_refused) {
  Program rank(train_arguments(prefix_, folder_ / "run", {"servers.dedicated=2"}),
               torchrun_environment(1, 2, "1"));
  const Outcome outcome = rank.wait();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("servers.dedicated = 2"), HasSubstr("2 ranks")));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
}

TEST_F(CliTrainTest, a_nano_batch_beyond_the_memory_cap_is_refused_with_the_numbers) {
  EXPECT_THAT(train_refusal({"--workers", "2", "plan.max_memory_gib=0.0001"}),
              AllOf(HasSubstr("plan.max_memory_gib = 0.0001"), HasSubstr("keys resent"),
                    HasSubstr("max_memory_bytes is 53687")));
}

TEST_F(CliTrainTest, a_bad_key_in_a_file_is_named_with_its_line) {
  const fs::path file = folder_ / "c.toml";
  write_file_atomically(file, "[train]\nsteps = 3\nsteeps = 4\n");
  EXPECT_THAT(train_refusal({"--config", file}),
              AllOf(HasSubstr(file.string() + " line 3"), HasSubstr("did you mean train.steps?")));
  write_file_atomically(file, "[train]\nsteps = \"three\"\n");
  EXPECT_THAT(train_refusal({"--config", file}),
              AllOf(HasSubstr(file.string() + " line 2"), HasSubstr("an integer")));
  EXPECT_THAT(train_refusal({"--config", folder_ / "absent.toml"}), HasSubstr("absent.toml"));
}

TEST_F(CliTrainTest, a_nano_batch_beyond_the_cap_is_refused_with_the_numbers) {
  EXPECT_THAT(train_refusal({"--workers", "2", "plan.max_tokens_per_worker=200"}),
              AllOf(HasSubstr("512 tokens"), HasSubstr("2 workers"), HasSubstr("200"),
                    HasSubstr("400 in all")));
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

TEST_F(CliTrainTest, a_folder_that_cannot_be_made_is_named) {
  write_file_atomically(folder_ / "file", "in the way");
  const Outcome outcome = run_distca(train_arguments(prefix_, folder_ / "file" / "run", {}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(::testing::StartsWith("distca: error: "),
                                 HasSubstr((folder_ / "file" / "run").string())));
}

TEST_F(CliTrainTest, a_rank_that_another_launcher_started_refuses_bad_input_too) {
  Program rank(train_arguments(prefix_, folder_ / "run", {"model.vocab_size=100"}),
               torchrun_environment(1, 2, "1"));
  const Outcome outcome = rank.wait();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("position 0"));
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
                AllOf(HasSubstr("data.prefix: rank 1 would train on " + other.string() + " (40"),
                      HasSubstr("rank 0 on " + prefix_.string() + " (40 documents, ")));
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
