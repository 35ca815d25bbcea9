#include "distca/comm/launch/rendezvous.h"

#include <string_view>

#include "distca/base/error.h"
#include "distca/base/text.h"

namespace distca {
namespace {

constexpr uint16_t kDefaultPort = 29400;

/// The variables of one launcher.
struct Variables {
  const EnvLookup& lookup;
  const char* source;

  std::optional<int> integer(const char* name, int low, int high = INT32_MAX) const {
    const std::optional<std::string> text = lookup(name);
    if (!text) return std::nullopt;
    const std::optional<int> value = to_number<int>(*text);
    DISTCA_THROW_IF(!value || *value < low || *value > high, ErrorKind::kConfig,
                    "environment ({}): {}=\"{}\", expected a number in [{}, {}]", source, name,
                    *text, low, high);
    return value;
  }
  [[noreturn]] void missing(const char* name) const {
    throw Error(ErrorKind::kConfig, "environment ({}): {} is not set; ranks started by {} need it",
                source, name, source);
  }
  int need(const char* name, int low) const {
    const std::optional<int> value = integer(name, low);
    if (!value) missing(name);
    return *value;
  }
};

Rendezvous ranks_from(const Variables& variables, const char* rank, const char* size) {
  Rendezvous found;
  found.source = variables.source;
  found.rank = variables.need(rank, 0);
  found.size = variables.need(size, 1);
  DISTCA_THROW_IF(found.rank >= found.size, ErrorKind::kConfig,
                  "environment ({}): {}={} must be below {}={}", variables.source, rank, found.rank,
                  size, found.size);
  return found;
}

/// A port all ranks of one job agree on without talking, below the range systems give out.
uint16_t port_of_job(const std::string& job) {
  if (job.empty()) return kDefaultPort;
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char byte : job) hash = (hash ^ static_cast<unsigned char>(byte)) * 16777619u;
  return static_cast<uint16_t>(20000 + hash % 10000);
}

/// Host and port: the overrides, else what torch's convention says, else `host` and `port`. The job
/// names the run, and its keys: two jobs that use one store do not meet.
void set_place(const Variables& variables, const std::optional<std::string>& host,
               std::optional<int> port, const std::string& job, Rendezvous& found) {
  auto address = variables.lookup("DISTCA_MASTER_ADDR");
  if (!address) address = variables.lookup("MASTER_ADDR");
  if (!address) address = host;
  if (!address) variables.missing("MASTER_ADDR");
  // Brackets may stand around it, as in a URL: "[::1]".
  const bool in_brackets = address->starts_with('[') && address->ends_with(']');
  found.address = in_brackets ? address->substr(1, address->size() - 2) : *address;
  auto given_port = variables.integer("DISTCA_MASTER_PORT", 1, 65535);
  if (!given_port) given_port = variables.integer("MASTER_PORT", 1, 65535);
  if (!given_port) given_port = port;
  if (!given_port) variables.missing("MASTER_PORT");
  found.port = static_cast<uint16_t>(*given_port);
  found.run = job.empty() ? found.source : fmt::format("{} job {}", found.source, job);
  found.prefix = job.empty() ? "distca/" : fmt::format("distca/{}/", job);
}

/// "node[003-007,9],other" -> "node003".
std::string first_host(std::string_view list) {
  const size_t open = list.find_first_of("[,");
  if (open == std::string_view::npos || list[open] == ',') return std::string(list.substr(0, open));
  const std::string_view numbers = list.substr(open + 1);
  std::string host(list.substr(0, open));
  host += numbers.substr(0, numbers.find_first_of("-,]"));
  const size_t close = list.find(']', open);
  if (close == std::string_view::npos) return host;
  const std::string_view rest = list.substr(close + 1);
  return host + std::string(rest.substr(0, rest.find(',')));
}

Rendezvous from_launcher(const EnvLookup& lookup) {
  const Variables variables{lookup, "distca"};
  Rendezvous found = ranks_from(variables, "DISTCA_RANK", "DISTCA_SIZE");
  found.local_rank = found.rank;
  set_place(variables, std::nullopt, std::nullopt, "", found);
  return found;
}

std::optional<Rendezvous> from_torchrun(const EnvLookup& lookup) {
  const Variables variables{lookup, "torchrun"};
  Rendezvous found = ranks_from(variables, "RANK", "WORLD_SIZE");
  if (found.size == 1) return std::nullopt;
  found.local_rank = variables.integer("LOCAL_RANK", 0).value_or(found.rank);
  set_place(variables, std::nullopt, std::nullopt, lookup("TORCHELASTIC_RUN_ID").value_or(""),
            found);
  if (lookup("TORCHELASTIC_USE_AGENT_STORE") != "True") found.store_host = StoreHost::kStoreProcess;
  // The agent's store outlives a restart of the ranks, and their old heartbeats with it.
  found.prefix = fmt::format("distca/{}/", lookup("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  return found;
}

std::optional<Rendezvous> from_slurm(const EnvLookup& lookup) {
  const Variables variables{lookup, "Slurm"};
  // Batch scripts and shells see the job's SLURM_NTASKS and a SLURM_PROCID too, but run once: only
  // a step of several tasks has several ranks.
  if (variables.integer("SLURM_STEP_NUM_TASKS", 1).value_or(1) == 1) return std::nullopt;
  Rendezvous found = ranks_from(variables, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
  found.local_rank = variables.integer("SLURM_LOCALID", 0).value_or(0);
  std::optional<std::string> host = lookup("SLURM_LAUNCH_NODE_IPADDR");
  for (const char* name : {"SLURM_NODELIST", "SLURM_STEP_NODELIST"}) {
    // Rank 0 runs on the first node; the node that launched may be another.
    if (const auto list = lookup(name)) host = first_host(*list);
  }
  std::string job = lookup("SLURM_JOB_ID").value_or("");
  if (const auto step = lookup("SLURM_STEP_ID")) job += " step " + *step;
  set_place(variables, host, port_of_job(job), job, found);
  found.store_host = StoreHost::kStoreProcess;
  return found;
}

std::optional<Rendezvous> from_open_mpi(const EnvLookup& lookup) {
  const Variables variables{lookup, "Open MPI"};
  Rendezvous found = ranks_from(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  if (found.size == 1) return std::nullopt;
  found.local_rank = variables.integer("OMPI_COMM_WORLD_LOCAL_RANK", 0).value_or(0);
  std::optional<std::string> host;
  if (variables.integer("OMPI_COMM_WORLD_LOCAL_SIZE", 1) == found.size) host = "127.0.0.1";
  const std::string job = lookup("PMIX_NAMESPACE").value_or("");
  set_place(variables, host, port_of_job(job), job, found);
  found.store_host = StoreHost::kStoreProcess;
  return found;
}

}  // namespace

std::optional<Rendezvous> find_rendezvous(const EnvLookup& lookup) {
  if (lookup("DISTCA_RANK")) return from_launcher(lookup);
  if (lookup("RANK") || lookup("WORLD_SIZE")) return from_torchrun(lookup);
  if (lookup("OMPI_COMM_WORLD_RANK")) return from_open_mpi(lookup);
  if (lookup("SLURM_PROCID")) return from_slurm(lookup);
  return std::nullopt;
}

}  // namespace distca
