#pragma once
// Measures the prices by which a step of this run is predicted (`distca simulate`): the ranks of
// the run play steps of random tokens, each with three sizes of nano-batches, and see what their
// operations and messages take.
//
//     const Machine machine = measure_machine(config, comm, profile, /*seconds=*/60);

#include <memory>

#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/cost/attention_profile.h"
#include "distca/cost/machine.h"

namespace distca {

/// All ranks of the run call it together, with nothing else under way; each with the profile of
/// core attention. Rank 0 gets the machine, the others one without meaning. It plays four to twelve
/// rounds, as many as `seconds` suffice for, of steps whose nano-batches have a quarter, a half and
/// all of batch.nano_batch_tokens; in a pipeline also steps in which weight gradients wait. Of
/// rounds, the mean counts, without the fastest and the slowest quarter, of ranks the mean. At the
/// end it plays the run's own steps, as they are configured, for Machine::check. The weights stay
/// as drawn. Counts: phases by kind, pass and tokens, with all ranks at work, without messages
/// under way; how core attention in steps compares with the profile; how much longer steps are
/// because ranks are slow by turns; copies, issuing, sums of gradients and the optimizer; messages
/// between neighbours, with what they take of a core. Ignores: several peers at once, ranks of
/// other nodes (they are priced like those of this one), a rank that computes alone and may be
/// faster then. Throws Error(kComm, kPlan).
Machine measure_machine(const Config& config, Communicator& comm,
                        std::shared_ptr<const AttentionProfile> profile, double seconds);

}  // namespace distca
