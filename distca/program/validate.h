#pragma once
// What is wrong with programs, one line each; empty when they can be played. Shares no code with
// the schedules. Any thread.

#include <span>
#include <string>
#include <vector>

#include "distca/program/program.h"

namespace distca {

/// Of one rank: operations wait for earlier ones only (so there is no cycle); each comes after what
/// it needs (core_attention after its dispatch, combine after its core_attention, backward after
/// forward, redispatch before backward's core_attention); no operation twice; messages lie within
/// their buffers, aligned, apart; every buffer is written, by the operation that is meant, before
/// it is read, and no longer read, sent from or received into when it is written again.
std::vector<std::string> validate(const Program& program);

/// Of all ranks together (programs[r] is rank r's): besides the above, every send has exactly one
/// receive of equal tag and bytes, each pair of ranks issues its messages in the same order, and
/// nobody waits in a circle.
std::vector<std::string> validate(std::span<const Program> programs);

}  // namespace distca
