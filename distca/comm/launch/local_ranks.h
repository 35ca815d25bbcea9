#pragma once
// How many ranks share this machine. A pure function of the environment.

#include "distca/comm/launch/rendezvous.h"

namespace distca {

/// Ranks on this machine, this one included, as its launcher says: all of our own launcher's;
/// LOCAL_WORLD_SIZE (torchrun); this node's number of SLURM_STEP_TASKS_PER_NODE by SLURM_NODEID
/// (Slurm); OMPI_COMM_WORLD_LOCAL_SIZE (Open MPI). Where they do not say, as many as are known by
/// this rank's own number among them.
int local_ranks(const Rendezvous& self, const EnvLookup& lookup);

}  // namespace distca
