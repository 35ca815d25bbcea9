#include "distca/comm/launch/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "distca/base/error.h"

namespace distca {
namespace {

using Environment = std::map<std::string, std::string>;

std::optional<Rendezvous> find(const Environment& environment) {
  return find_rendezvous([&](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

std::string refusal(const Environment& environment) {
  try {
    find(environment);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "accepted";
}

const Environment kTorchrun = {{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RUN_ID", "7"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"}};

TEST(Rendezvous, nobody_started_us) {
  EXPECT_EQ(find({}), std::nullopt);
  EXPECT_EQ(find({{"MASTER_ADDR", "x"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}),
            std::nullopt);
}

TEST(Rendezvous, our_launcher_comes_before_all_others) {
  Environment environment = kTorchrun;
  environment.merge(Environment{{"DISTCA_RANK", "1"},
                                {"DISTCA_SIZE", "2"},
                                {"DISTCA_MASTER_ADDR", "127.0.0.1"},
                                {"DISTCA_MASTER_PORT", "4000"}});
  const Rendezvous expected{.rank = 1,
                            .size = 2,
                            .local_rank = 1,
                            .address = "127.0.0.1",
                            .port = 4000,
                            .store_host = StoreHost::kLauncher,
                            .prefix = "distca/",
                            .source = "distca",
                            .run = "distca"};
  EXPECT_EQ(find(environment), expected);
}

TEST(Rendezvous, torchruns_agent_keeps_the_store_and_a_restart_gets_fresh_keys) {
  const Rendezvous expected{.rank = 3,
                            .size = 4,
                            .local_rank = 1,
                            .address = "10.0.0.1",
                            .port = 29500,
                            .store_host = StoreHost::kLauncher,
                            .prefix = "distca/2/",
                            .source = "torchrun",
                            .run = "torchrun job 7"};
  EXPECT_EQ(find(kTorchrun), expected);
}

TEST(Rendezvous, without_an_agent_store_a_store_process_is_needed) {
  Environment environment = kTorchrun;
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(find(environment)->store_host, StoreHost::kStoreProcess);
}

TEST(Rendezvous, slurm_meets_on_the_steps_first_node_at_a_port_of_the_job) {
  Environment environment = {{"SLURM_PROCID", "5"},
                             {"SLURM_STEP_NUM_TASKS", "8"},
                             {"SLURM_NTASKS", "16"},
                             {"SLURM_LOCALID", "1"},
                             {"SLURM_STEP_NODELIST", "node[003-007,9]-ib,other"},
                             {"SLURM_LAUNCH_NODE_IPADDR", "10.9.9.9"},
                             {"SLURM_JOB_ID", "4711"}};
  const auto found = find(environment);
  EXPECT_EQ(found->rank, 5);
  EXPECT_EQ(found->size, 8);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->address, "node003-ib");
  EXPECT_EQ(found->store_host, StoreHost::kStoreProcess);
  EXPECT_GE(found->port, 20000);
  EXPECT_LT(found->port, 30000);
  environment["SLURM_PROCID"] = "0";
  EXPECT_EQ(find(environment)->port, found->port);
  environment["SLURM_JOB_ID"] = "4712";
  EXPECT_NE(find(environment)->port, found->port);
  environment["SLURM_STEP_NODELIST"] = "single";
  EXPECT_EQ(find(environment)->address, "single");
  environment["SLURM_STEP_NODELIST"] = "a1,a2";
  EXPECT_EQ(find(environment)->address, "a1");
  environment.erase("SLURM_STEP_NODELIST");
  EXPECT_EQ(find(environment)->address, "10.9.9.9");
}

TEST(Rendezvous, two_steps_of_a_slurm_job_have_other_ports_keys_and_names) {
  Environment environment = {{"SLURM_PROCID", "0"},
                             {"SLURM_STEP_NUM_TASKS", "8"},
                             {"SLURM_STEP_NODELIST", "a"},
                             {"SLURM_JOB_ID", "4711"},
                             {"SLURM_STEP_ID", "0"}};
  const auto first = find(environment);
  environment["SLURM_STEP_ID"] = "1";
  const auto second = find(environment);
  EXPECT_EQ(first->run, "Slurm job 4711 step 0");
  EXPECT_EQ(first->prefix, "distca/4711 step 0/");
  EXPECT_EQ(second->run, "Slurm job 4711 step 1");
  EXPECT_NE(first->port, second->port);
  EXPECT_NE(first->prefix, second->prefix);
  environment["MASTER_PORT"] = "29500";
  EXPECT_EQ(find(environment)->port, 29500);
  EXPECT_EQ(find(environment)->run, "Slurm job 4711 step 1");
}

TEST(Rendezvous, inside_a_slurm_job_mpiruns_ranks_are_open_mpis_and_pmix_alone_is_slurm) {
  struct Row {
    const char* what;
    Environment environment;
    std::string source;
    int rank, size;
  };
  const Environment slurm = {{"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "0"},
                             {"SLURM_PROCID", "1"},    {"SLURM_STEP_NUM_TASKS", "2"},
                             {"SLURM_NTASKS", "2"},    {"SLURM_STEP_NODELIST", "node[1-2]"}};
  const Environment pmix = {
      {"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "slurm.pmix.4711.0"}, {"PMI_RANK", "1"}};
  const Environment mpi = {{"OMPI_COMM_WORLD_RANK", "5"},       {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"PMIX_NAMESPACE", "1404239873"},    {"MASTER_ADDR", "node1"}};
  const auto with = [](Environment base, const Environment& more) {
    for (const auto& [name, value] : more) base[name] = value;
    return base;
  };
  const Environment batch = {{"SLURM_JOB_ID", "4711"}, {"SLURM_PROCID", "0"}};
  const Environment shell = with(slurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}});
  const Row rows[] = {
      {"srun", slurm, "Slurm", 1, 2},
      {"srun --mpi=pmix", with(slurm, pmix), "Slurm", 1, 2},
      {"mpirun whose daemons srun started", with(slurm, mpi), "Open MPI", 5, 8},
      {"mpirun in a batch script", with(batch, mpi), "Open MPI", 5, 8},
      {"mpirun in srun --pty bash", with(shell, mpi), "Open MPI", 5, 8},
      {"torchrun in a step", with(slurm, kTorchrun), "torchrun", 3, 4},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const auto found = find(row.environment);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->source, row.source);
    EXPECT_EQ(found->rank, row.rank);
    EXPECT_EQ(found->size, row.size);
  }
  EXPECT_EQ(find(with(slurm, mpi))->run, "Open MPI job 1404239873");
}

TEST(Rendezvous, batch_scripts_and_shells_of_a_slurm_job_are_no_ranks) {
  Environment environment = {{"SLURM_JOB_ID", "4711"},
                             {"SLURM_NTASKS", "8"},
                             {"SLURM_NODELIST", "node[003-004]"},
                             {"SLURM_LAUNCH_NODE_IPADDR", "10.9.9.9"}};
  EXPECT_EQ(find(environment), std::nullopt) << "salloc's shell";
  environment["SLURM_PROCID"] = "0";
  EXPECT_EQ(find(environment), std::nullopt) << "a batch script";
  environment["SLURM_STEP_ID"] = "4294967290";
  environment["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_EQ(find(environment), std::nullopt) << "salloc's shell as an interactive step";
  environment["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(find(environment), std::nullopt) << "srun --pty bash";
  environment["SLURM_STEP_NUM_TASKS"] = "8";
  EXPECT_EQ(find(environment)->size, 8) << "srun in any of them";
}

TEST(Rendezvous, open_mpi_on_one_machine_needs_no_address_on_several_it_does) {
  Environment environment = {{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
  EXPECT_EQ(find(environment)->address, "127.0.0.1");
  environment["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_EQ(refusal(environment),
            "environment (Open MPI): MASTER_ADDR is not set; ranks started by Open MPI need it");
  environment["DISTCA_MASTER_ADDR"] = "head";
  environment["DISTCA_MASTER_PORT"] = "1234";
  EXPECT_EQ(find(environment)->address, "head");
  EXPECT_EQ(find(environment)->port, 1234);
}

TEST(Rendezvous, the_only_process_of_a_launcher_is_no_rank) {
  EXPECT_EQ(find({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), std::nullopt) << "a pod";
  Environment environment = kTorchrun;
  environment["RANK"] = "0";
  environment["WORLD_SIZE"] = "1";
  EXPECT_EQ(find(environment), std::nullopt);
  EXPECT_EQ(find({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), std::nullopt);
  EXPECT_EQ(refusal({{"RANK", "1"}, {"WORLD_SIZE", "1"}}),
            "environment (torchrun): RANK=1 must be below WORLD_SIZE=1");
  environment.merge(Environment{{"DISTCA_RANK", "0"},
                                {"DISTCA_SIZE", "1"},
                                {"DISTCA_MASTER_ADDR", "::1"},
                                {"DISTCA_MASTER_PORT", "4000"}});
  EXPECT_EQ(find(environment)->size, 1) << "our launcher's, which starts it again";
}

TEST(Rendezvous, an_address_may_stand_in_brackets_as_in_a_url) {
  Environment environment = kTorchrun;
  environment["MASTER_ADDR"] = "[fd00::1]";
  EXPECT_EQ(find(environment)->address, "fd00::1");
}

TEST(Rendezvous, values_that_are_missing_or_contradict_are_refused_in_one_line) {
  Environment environment = kTorchrun;
  environment.erase("WORLD_SIZE");
  EXPECT_EQ(refusal(environment),
            "environment (torchrun): WORLD_SIZE is not set; ranks started by torchrun need it");
  environment["WORLD_SIZE"] = "3";
  EXPECT_EQ(refusal(environment), "environment (torchrun): RANK=3 must be below WORLD_SIZE=3");
  environment["WORLD_SIZE"] = "four";
  EXPECT_EQ(refusal(environment),
            "environment (torchrun): WORLD_SIZE=\"four\", expected a number in [1, 2147483647]");
  environment = kTorchrun;
  environment["MASTER_PORT"] = "70000";
  EXPECT_EQ(refusal(environment),
            "environment (torchrun): MASTER_PORT=\"70000\", expected a number in [1, 65535]");
  EXPECT_EQ(refusal({{"DISTCA_RANK", "0"}, {"DISTCA_SIZE", "1"}}),
            "environment (distca): MASTER_ADDR is not set; ranks started by distca need it");
}

}  // namespace
}  // namespace distca
