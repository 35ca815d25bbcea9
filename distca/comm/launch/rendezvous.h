#pragma once
// The rank of this process, and where the ranks meet: read from the environment that whoever
// started it has set. A pure function of that environment.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace distca {

/// The process that keeps the key-value store through which ranks meet. It is never a rank, because
/// the death of rank 0 must be announced as well.
enum class StoreHost {
  kLauncher,      // our launcher, or torchrun's agent: it is there already
  kStoreProcess,  // Slurm, Open MPI: a small process that rank 0 starts (store_process.h)
};

struct Rendezvous {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this machine: which device to use
  std::string address;
  uint16_t port = 0;
  StoreHost store_host = StoreHost::kLauncher;
  std::string prefix;  // our keys begin with it: a store may outlive one run
  std::string source;  // the launcher, for messages: "distca", "torchrun", "Slurm", "Open MPI"
  std::string run;     // the launcher's job: "Slurm job 4711 step 0"; the same on all ranks
  bool operator==(const Rendezvous&) const = default;
};

/// The value of a variable; none where it is unset or empty (distca::env_string).
using EnvLookup = std::function<std::optional<std::string>(const char* name)>;

/// None where nobody started us as a rank. The first of these that is set says that somebody did:
///   our launcher   DISTCA_RANK; DISTCA_SIZE DISTCA_MASTER_ADDR DISTCA_MASTER_PORT
///   torchrun       RANK or WORLD_SIZE; MASTER_ADDR MASTER_PORT LOCAL_RANK
///                  TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT
///   Open MPI       OMPI_COMM_WORLD_RANK; OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE
///                  PMIX_NAMESPACE
///   Slurm          SLURM_PROCID and SLURM_STEP_NUM_TASKS above 1; first of SLURM_STEP_NODELIST
///                  SLURM_JOB_ID SLURM_STEP_ID
/// DISTCA_MASTER_ADDR and DISTCA_MASTER_PORT override the address in each.
///
/// Open MPI comes before Slurm: inside a Slurm job mpirun starts its daemons by srun, and the ranks
/// inherit what Slurm said of those. `srun --mpi=pmix` sets PMIX_ variables, none of Open MPI's.
///
/// So inside a Slurm job only the tasks of a step of several are ranks. A batch script, salloc's
/// shell (a step of one task, or none) and `srun --pty bash` are not: `--workers` starts local
/// ranks there, and srun ranks of the job. The shell of `srun --ntasks=4 --pty bash` cannot be told
/// from a rank: unset SLURM_PROCID in it.
///
/// A process that torchrun, a pod's operator or mpirun has started as the only one is no rank
/// either, as it has nobody to meet: `--workers` starts local ranks there.
///
/// Throws Error(kConfig) for a value that is missing, no number, or contradicts another.
std::optional<Rendezvous> find_rendezvous(const EnvLookup& lookup);

}  // namespace distca
