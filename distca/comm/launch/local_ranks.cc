#include "distca/comm/launch/local_ranks.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

namespace distca {
namespace {

/// The number that `text` begins with, which is taken off it.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [stop, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(stop - text.data()));
  return number;
}

std::optional<int> number_of(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  std::string_view rest = *text;
  const auto number = take_number(rest);
  return rest.empty() ? number : std::nullopt;
}

/// "4(x2),3": 4 tasks on nodes 0 and 1, 3 on node 2.
std::optional<int> tasks_of_node(std::string_view list, int node) {
  while (true) {
    const auto tasks = take_number(list);
    if (!tasks) return std::nullopt;
    int nodes = 1;
    if (list.starts_with("(x")) {
      list.remove_prefix(2);
      const auto times = take_number(list);
      if (!times || !list.starts_with(")")) return std::nullopt;
      list.remove_prefix(1);
      nodes = *times;
    }
    if (node < nodes) return tasks;
    node -= nodes;
    if (!list.starts_with(",")) return std::nullopt;
    list.remove_prefix(1);
  }
}

std::optional<int> said(const Rendezvous& self, const EnvLookup& lookup) {
  if (self.source == "distca") return self.size;
  if (self.source == "torchrun") return number_of(lookup("LOCAL_WORLD_SIZE"));
  if (self.source == "Open MPI") return number_of(lookup("OMPI_COMM_WORLD_LOCAL_SIZE"));
  auto list = lookup("SLURM_STEP_TASKS_PER_NODE");
  if (!list) list = lookup("SLURM_NTASKS_PER_NODE");
  const auto node = number_of(lookup("SLURM_NODEID"));
  if (!list || !node) return std::nullopt;
  // One number is that of every node.
  return list->find_first_of("(,") == std::string::npos ? number_of(list)
                                                        : tasks_of_node(*list, *node);
}

}  // namespace

int local_ranks(const Rendezvous& self, const EnvLookup& lookup) {
  // Where torchrun's LOCAL_RANK is not set, the rank stands in for it and says nothing of a
  // machine.
  const bool counts = self.source != "torchrun" || lookup("LOCAL_RANK");
  const int least = counts ? std::min(self.local_rank + 1, self.size) : 1;
  return std::clamp(said(self, lookup).value_or(1), least, self.size);
}

}  // namespace distca
