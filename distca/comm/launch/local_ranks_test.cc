#include "distca/comm/launch/local_ranks.h"

#include <gtest/gtest.h>

#include <map>

namespace distca {
namespace {

using Variables = std::map<std::string, std::string>;

int count(const char* source, int size, int local_rank, const Variables& variables) {
  const Rendezvous self{.size = size, .local_rank = local_rank, .source = source};
  return local_ranks(self, [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

TEST(local_ranks, each_launcher_says_it_in_its_own_way) {
  EXPECT_EQ(count("distca", 5, 1, {}), 5);
  EXPECT_EQ(count("torchrun", 16, 3, {{"LOCAL_WORLD_SIZE", "8"}}), 8);
  EXPECT_EQ(count("Open MPI", 16, 3, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}), 4);
  const auto slurm = [](const char* tasks, const char* node) {
    return count("Slurm", 16, 0, {{"SLURM_STEP_TASKS_PER_NODE", tasks}, {"SLURM_NODEID", node}});
  };
  EXPECT_EQ(slurm("4(x2),3,1(x5)", "0"), 4);
  EXPECT_EQ(slurm("4(x2),3,1(x5)", "1"), 4);
  EXPECT_EQ(slurm("4(x2),3,1(x5)", "2"), 3);
  EXPECT_EQ(slurm("4(x2),3,1(x5)", "7"), 1);
  EXPECT_EQ(slurm("6", "0"), 6);
}

TEST(local_ranks, what_is_not_said_is_the_least_there_can_be) {
  EXPECT_EQ(count("torchrun", 16, 3, {{"LOCAL_RANK", "3"}}), 4);
  EXPECT_EQ(count("torchrun", 16, 3, {{"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "many"}}), 4);
  EXPECT_EQ(count("torchrun", 16, 3, {}), 1) << "the rank stands in for LOCAL_RANK";
  EXPECT_EQ(count("torchrun", 2, 0, {{"LOCAL_WORLD_SIZE", "8"}}), 2) << "never more than all";
  EXPECT_EQ(count("Slurm", 8, 0, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2"}, {"SLURM_NODEID", "0"}}),
            1);
  EXPECT_EQ(count("Slurm", 8, 0, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}, {"SLURM_NODEID", "3"}}),
            1);
}

}  // namespace
}  // namespace distca
