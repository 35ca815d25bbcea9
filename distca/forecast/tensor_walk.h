#pragma once
// Plays the phases of train/tensor_nano_phases.h on paper, which the ranks of a server divide, and
// the messages between them that tensors are made for (train/tensor_messages.h). Thread rule: as
// ProgramWalk.

#include <memory>

#include "distca/forecast/program_walk.h"

namespace distca {

/// Borrows both.
std::unique_ptr<ProgramWalk> tensor_walk(const Config& config, const Program& program,
                                         int64_t multiprocessors);

}  // namespace distca
