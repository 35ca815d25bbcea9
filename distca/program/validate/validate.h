#pragma once
// Checks programs. Each function returns one line for each fault, and nothing where the programs
// can be played. The checks share no code with the overlap modes. Any thread may call them.
//
//   for (const std::string& fault : validate(program)) fmt::print("{}\n", fault);

#include <span>
#include <string>
#include <vector>

#include "distca/program/program.h"

namespace distca {

/// Checks the program of one rank:
///  - operations wait only for earlier ones, so there is no cycle;
///  - every operation comes after what it needs: core_attention after its dispatch, combine after
///    its core_attention, backward after forward, redispatch before the core_attention of backward,
///    a stage's first layer after the p2p that it needs, and its own p2p after its last;
///  - no operation is missing or there twice: every nano-batch has all layers of the stage once in
///    each pass, and every exchange all its layer steps;
///  - messages lie inside their buffers, aligned and apart from each other;
///  - every bucket of gradients is summed once, after all that adds to it, and is not written
///    meanwhile;
///  - every buffer is written by the right operation before it is read, and nothing reads it, sends
///    from it or receives into it any more when it is written again.
std::vector<std::string> validate(const Program& program);

/// Checks the programs of all ranks together; programs[r] is that of rank r. Besides what is
/// checked for each of them, every send has exactly one receive of equal tag and bytes, each pair
/// of ranks issues its messages in the same order, no ranks wait for each other in a circle, and
/// every element of the gradients is added up by one rank and comes back to where it was, and the
/// stages of a pipeline have the layers of the model, one after another.
std::vector<std::string> validate(std::span<const Program> programs);

}  // namespace distca
